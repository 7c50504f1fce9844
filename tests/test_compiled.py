import numba
import numpy as np

from autoddl.compiled import Compiler


def doubled(numbers):
    total = 0.0
    for number in numbers:
        total += 2 * number
    return total


def test_loops_are_compiled_once_arrays_have_taken_as_long():
    compiler = Compiler()
    assert compiler.worth(doubled, 0.3) is None
    loops = compiler.worth(doubled, 0.3)
    assert loops is not None and loops is not doubled
    assert loops(np.ones(3)) == 6.0
    assert compiler.worth(doubled, 0.0) is loops


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch):
    njit = numba.njit

    def without_a_place(*args, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args, **options)

    monkeypatch.setattr(numba, "njit", without_a_place)
    assert Compiler().compiled(doubled)(np.ones(4)) == 8.0


def test_loops_are_compiled_at_once_where_much_is_expected():
    compiler = Compiler()
    compiler.expect_much()
    assert compiler.worth(doubled, 0.0) is not None
