"""Predicted against measured, in training."""

import threading

import numpy as np
import pytest

from autoddl.runtime.comm.beside import Beside, later
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.measure.training import APART, LAST, Compared, StepWatch
from autoddl.sbp.mesh import Mesh
from tests.exactness.numpy_backend import NumPy, World
from tests.plans.example import PLAN


@pytest.mark.parametrize(
    ("stages", "chunks"),
    [*(pytest.param(*one, marks=pytest.mark.full) for one in ((1, 1), (2, 1))), (2, 2)],
)
def test_what_is_slow_is_named_once(launch, stages, chunks):
    """A kernel sleeps, which the step and its parts show. What was communicated is timed again."""
    pytest.importorskip("oneflow", reason="needs OneFlow")
    assert "measured: after 10 steps" in launch("measured", 4, str(stages), str(chunks))


def test_off_is_far_in_ratio_and_in_size():
    assert Compared(1.0, 1.4).is_off(0.1)
    assert Compared(1.4, 1.0).is_off(0.1)
    assert not Compared(1.0, 1.25).is_off(0.1)
    assert not Compared(0.01, 0.1).is_off(0.1)
    assert Compared(0.0, 1.0).is_off(0.1)
    assert str(Compared(0.01, 0.03)) == "30 ms instead of 10 ms (3 times)"
    assert str(Compared(0.01, 1.4)) == "1.4 s instead of 10 ms (140 times)"
    assert str(Compared(0.0, 2e6, "bytes")) == "2 MB instead of 0 B"


class Waits(NumPy):
    """Counts what was waited for."""

    def __init__(self, world, rank):
        super().__init__(world, rank)
        self.thread: Beside | None = Beside(lambda: None)
        self.waits = 0

    def wait(self, x=None):
        self.waits += 1


def test_nothing_communicates_beside_computation_in_a_step_that_is_taken_apart():
    """What is hidden was taken off computation, which it had not been added to."""

    def work(given):
        backend = Waits(given.world, given.rank)
        groups = Groups(Mesh(1, 2), backend.rank, backend)
        watch, apart = StepWatch(PLAN, groups, groups, [[0, 1]], True), []

        def step():
            where = later(backend.thread, threading.get_ident)()
            before = backend.waits
            groups.world.all_reduce(np.ones(5))
            return where == threading.get_ident(), backend.waits > before

        for _ in range(LAST - 1):
            watch.start()
            apart.append(watch.work(step))
            watch.end()
        return apart

    for apart in World(2).run(work):
        assert apart == [(number in APART,) * 2 for number in range(1, LAST)]
