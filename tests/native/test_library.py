"""The compiled library: that it is there, of this source, and takes arrays of any kind."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from autoddl._native.fingerprint import fingerprint
from autoddl._native.library import SOURCE, load, loops
from autoddl.search.elimination import on_arrays

COMPILER = shutil.which("cc") or shutil.which("gcc")
COMPILED = loops()
needs_loops = pytest.mark.skipif(COMPILED is None, reason="the loops were not compiled")


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_where_there_is_a_compiler_there_are_loops():
    assert COMPILED is not None


def made_from(fingerprint, folder):
    path = folder / "_loops.so"
    macro = f'-DAUTODDL_LOOPS_SOURCE="{fingerprint}"'
    command = [COMPILER, "-shared", "-fPIC", macro, str(SOURCE), "-o", str(path), "-lm"]
    subprocess.run(command, check=True)
    return path


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_a_library_of_another_source_is_an_error(tmp_path):
    with pytest.raises(ImportError, match="another version of loops.c; install autoddl again"):
        load(made_from("0123456789abcdef", tmp_path))


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_a_library_of_this_source_is_loaded(tmp_path):
    found = load(made_from(fingerprint(SOURCE.read_bytes()), tmp_path))
    assert found is not None and isinstance(found.library, ctypes.CDLL)


def test_a_library_of_another_kind_of_machine_is_passed_over(tmp_path):
    path = tmp_path / "_loops.so"
    path.write_bytes(b"not of this machine")
    assert load(path) is None


def kinds(table):
    """The same table in other layouts and precisions."""
    wide = np.repeat(np.repeat(table, 2, axis=0), 3, axis=1)
    frozen = table.copy()
    frozen.flags.writeable = False
    return (
        table, np.asfortranarray(table), wide[::2, ::3], table[::-1, ::-1].copy()[::-1, ::-1],
        table.astype(np.float32).astype(np.float64), np.array(frozen), frozen,
    )  # fmt: skip


@needs_loops
def test_tables_may_be_laid_out_in_any_way():
    assert COMPILED is not None
    rng = np.random.default_rng(0)
    left = rng.random((7, 5)).astype(np.float32).astype(np.float64)
    right = rng.random((5, 6)).astype(np.float32).astype(np.float64)
    node = rng.random(5)
    expected = on_arrays(left, node, right)
    for one in (*kinds(left), left.astype(np.float32)):
        for other in (*kinds(right), right.astype(np.float32)):
            assert np.array_equal(COMPILED.min_plus(one, node, other), expected)
    whole = np.arange(35).reshape(7, 5)
    assert np.array_equal(
        COMPILED.min_plus(whole, node, right), on_arrays(whole.astype(float), node, right)
    )


@needs_loops
def test_paths_are_extended_by_edges_of_any_kind():
    assert COMPILED is not None
    begins, dst = np.array([0, 1, 3, 4]), np.array([1, 1, 2, 0])
    weights = np.array([1.0, 0.0, 2.0, np.inf])
    for edges in ((begins, dst), (begins.astype(np.int32), dst[::-1].copy()[::-1])):
        length = np.full((3, 2), np.inf)
        length[0, 0] = length[2, 1] = 0.0
        COMPILED.shortest(np.array([2, 0, 1]), *edges, weights, length)
        assert length.tolist() == [[0.0, np.inf], [1.0, np.inf], [3.0, 0.0]]


@needs_loops
def test_the_shortest_paths_of_no_start_and_of_no_edges():
    assert COMPILED is not None
    begins, none = np.zeros(4, np.int32), (np.zeros(0, np.int32), np.zeros(0))
    COMPILED.shortest(np.arange(3), begins, *none, np.zeros((3, 0)))
    length = np.array([[np.inf], [0.0], [np.inf]])
    COMPILED.shortest(np.arange(3), begins, *none, length)
    assert length.tolist() == [[np.inf], [0.0], [np.inf]]
