"""Bounds of path prices against the prices."""

import numpy as np
import pytest

from autoddl.cost.comm import CommModel
from autoddl.sbp.counted import Counted
from autoddl.sbp.counted_states import CountedStates, Replaced
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


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus"), [("gcp_a100", 8, 4), ("gcp_a100", 12, 6), ("laptop", 8, 4)]
)
def test_no_path_falls_below_the_bound_where_dims_stay_whole(machine, nodes, gpus):
    """A path may split a dim that neither its start nor its end splits."""
    where, spec = cluster(machine, nodes, gpus), TensorSpec((24, 72, 6, 144), "float32")
    price = CommModel(where).price
    rng = np.random.default_rng(4)
    sources, targets = (states(rng, 12, where.mesh.num_axes, 4) for _ in range(2))
    counted, table = Counted(where.mesh, price), PathTable(where.mesh, price)
    for whole in ((1, 2, 3), (1,), (0, 3), (0, 1, 2, 3)):
        some = [np.where(np.isin(codes, whole), np.int8(-1), codes) for codes in (sources, targets)]
        exact, bound = table.seconds(spec, *some), counted.seconds(spec, *some)
        assert np.isfinite(exact).any()
        assert (bound <= exact * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "dims"),
    [
        ("gcp_a100", 16, 4, 2),
        ("gcp_a100", 12, 6, 2),
        ("piz_daint", 32, 1, 3),
        ("laptop", 8, 4, 2),
        ("gcp_a100", 8, 8, 1),
    ],
)
@pytest.mark.parametrize("size", [1, 2**12, 2**22, 2**34])
def test_without_the_steps_that_others_replace_and_in_phases_seconds_are_the_same(
    monkeypatch, machine, nodes, gpus, dims, size
):
    where = cluster(machine, nodes, gpus)
    price, axes = CommModel(where).price, where.mesh.num_axes
    sources, targets = (states(np.random.default_rng(5), 60, axes, dims) for _ in range(2))
    spec = TensorSpec((size, *(1,) * (dims - 1)), "float32")
    graphs = []
    graph_of = CountedStates.graph

    def graph(*args):
        graphs.append(graph_of(*args))
        return graphs[-1]

    def whole(states, ndim, asked, replaced):
        every = Replaced(np.full_like(replaced.apart, -1), replaced.sums & False, False)
        return graph(states, ndim, asked, every)

    monkeypatch.setattr(CountedStates, "graph", graph)
    found = Counted(where.mesh, price).seconds(spec, sources, targets)
    monkeypatch.setattr(CountedStates, "graph", whole)
    expected = Counted(where.mesh, price).seconds(spec, sources, targets)
    few, every = graphs
    assert len(few.phases) == 5 and len(every.phases) == 1
    assert len(few.src) < len(every.src)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-15)


def test_phases_need_cheap_all_to_alls():
    where = cluster("gcp_a100", 16, 4)
    model = CommModel(where)

    def price(kind, axes):
        alpha_s, s_per_byte = model.price(kind, axes)
        return (alpha_s, 100 * s_per_byte) if kind == "all_to_all" else (alpha_s, s_per_byte)

    spec = TensorSpec((1024, 1024), "float32")
    sources, targets = (states(np.random.default_rng(6), 40, 6, 2) for _ in range(2))
    counted = Counted(where.mesh, price)
    found = counted.seconds(spec, sources, targets)
    assert len(counted._graph(2).phases) == 1
    exact = PathTable(where.mesh, price).seconds(spec, sources, targets)
    assert (found <= exact * (1 + 1e-9)).all()
