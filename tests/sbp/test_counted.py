"""Bounds of path prices against the prices."""

import numpy as np
import pytest

from autoddl.cost.comm import CommModel
from autoddl.sbp.counted import Counted
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.redistribute import PathTable
from autoddl.sbp.symmetry import rename
from tests.clusters import cluster


def states(rng, count, axes, ndim):
    """Some of long runs, as strategies have them, and some of any labels."""
    runs = np.sort(rng.integers(0, axes + 1, (count, 2)), axis=1)
    labels = rng.integers(-2, ndim, (count, 3))
    place = (np.arange(axes) >= runs[:, :1]).astype(int) + (np.arange(axes) >= runs[:, 1:])
    simple = np.take_along_axis(labels, place, axis=1)
    return np.concatenate([simple, rng.integers(-2, ndim, (count, axes))]).astype(np.int8)


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "shape", "dtype"),
    [
        ("piz_daint", 8, 1, (64, 48), "float32"),
        ("piz_daint", 64, 1, (32, 8, 64), "float32"),  # all counted states, a core of the others
        ("gcp_a100", 64, 4, (32, 64, 64), "float32"),  # those of the core, and what is asked for
        ("gcp_a100", 12, 6, (144, 40), "float32"),
        ("laptop", 8, 4, (64, 12), "float16"),
        ("gcp_a100", 8, 2, (64, 32), "int64"),
        ("gcp_a100", 4, 4, (), "float32"),
    ],
)
def test_no_path_falls_below_the_bound(machine, nodes, gpus, shape, dtype):
    where, spec = cluster(machine, nodes, gpus), TensorSpec(shape, dtype)
    price = CommModel(where).price
    rng = np.random.default_rng(0)
    counted, table = Counted(where.mesh, price), PathTable(where.mesh, price)
    for _ in range(3):  # the later ones ask for states that the graph of the first may not have
        sources, targets = (states(rng, 12, where.mesh.num_axes, len(shape)) for _ in range(2))
        exact = table.seconds(spec, sources, targets)
        bound = counted.seconds(spec, sources, targets)
        assert np.isfinite(bound[np.isfinite(exact)]).all()
        assert (bound <= exact * (1 + 1e-9)).all()
        rows = counted.row_seconds(spec, sources, targets)
        assert (rows <= np.diagonal(exact) * (1 + 1e-9)).all()
        assert np.isfinite(exact).any()
        assert (bound[np.isfinite(bound)] > 0).any()


@pytest.mark.parametrize("shape", [(36, 24), (60, 12, 4)])
def test_without_equal_axes_most_bounds_are_prices(shape):
    """On axes of extents 2 and 3 nothing is forgotten but the order in which splits nest."""
    where, spec = cluster("piz_daint", 6, 1), TensorSpec(shape, "float32")
    price = CommModel(where).price
    codes = np.array([(a, b) for a in range(-2, len(shape)) for b in range(-2, len(shape))])
    codes = codes.astype(np.int8)
    exact = PathTable(where.mesh, price).seconds(spec, codes, codes)
    bound = Counted(where.mesh, price).seconds(spec, codes, codes)
    finite = np.isfinite(exact)
    assert (bound[finite] <= exact[finite] * (1 + 1e-9)).all()
    same = np.isclose(bound[finite], exact[finite], rtol=1e-5, atol=0)
    assert 0.7 < same.mean() < 1  # the rest reorders a nested split


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "shapes"),
    [
        ("piz_daint", 64, 1, [(64, 128), (512, 64), (24, 64)]),
        ("gcp_a100", 64, 4, [(256, 512, 512), (1024, 1024, 256), (32, 256, 6)]),
    ],
)
def test_one_search_for_all_sizes_finds_what_each_finds(machine, nodes, gpus, shapes):
    where = cluster(machine, nodes, gpus)
    price, axes = CommModel(where).price, where.mesh.num_axes
    rng = np.random.default_rng(1)
    asked = [
        (TensorSpec(shape, dtype), *(states(rng, 9, axes, len(shape)) for _ in range(2)))
        for shape in shapes
        for dtype in ("float32", "int64")
    ]
    together = Counted(where.mesh, price)
    for question in asked:
        together.ask(*question)
    for question in asked:
        alone = Counted(where.mesh, price)
        for spec, sources, targets in asked:  # the same states, and so the same graph
            alone.seconds(TensorSpec(spec.shape, "float16"), sources, targets)
        found = together.seconds(*question)
        np.testing.assert_allclose(found, alone.seconds(*question), rtol=1e-5)
        rows = together.row_seconds(*question)
        np.testing.assert_allclose(rows, np.diagonal(found))


def test_dims_that_divide_alike_may_swap_names():
    where, spec = cluster("gcp_a100", 16, 4), TensorSpec((64, 128, 256), "float32")
    counted = Counted(where.mesh, CommModel(where).price)
    sources, targets = (states(np.random.default_rng(2), 12, 6, 3) for _ in range(2))
    found = counted.seconds(spec, sources, targets)
    assert np.isfinite(found).any()
    for names in ([1, 0, 2], [2, 1, 0], [1, 2, 0]):
        renamed = [rename(codes, np.array(names, dtype=np.int8)) for codes in (sources, targets)]
        swapped = Counted(where.mesh, CommModel(where).price).seconds(spec, *renamed)
        np.testing.assert_allclose(swapped, found, rtol=1e-5)
