"""Redistribution: cheapest paths, their table, and what they cost beside a full gather."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.sbp.collectives import Step, StepKind, is_legal, legal_steps
from autoddl.sbp.layout import TensorSpec, is_even
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp
from autoddl.sbp.redistribute import PathTable, cheapest_path, dual, path_cost
from autoddl.sbp.states import StateGraph, core_codes

from .strategies import float_spec, odd_price, path_table, placed_tensors, ring_price, volume_price


def reached(nd, steps):
    """The placement after legal steps."""
    for step in steps:
        assert is_legal(step, nd), f"{step} at {nd}"
        nd = step.apply(nd)
    return nd


def dijkstra(spec, source, mesh, price, allowed):
    """Seconds to every state, by the definition of legal steps, one by one."""
    seconds, queue = {}, [(0.0, str(source), source)]
    while queue:
        cost, _, nd = heapq.heappop(queue)
        if nd in seconds:
            continue
        seconds[nd] = cost
        for step in legal_steps(nd, len(spec.shape)):
            after = step.apply(nd)
            if after not in seconds and allowed(after):
                reach = cost + path_cost(spec, nd, (step,), mesh, price)
                heapq.heappush(queue, (reach, str(after), after))
    return seconds


# Paths of note. (mesh 2x2, 64 x 64; `sent`: bytes that a device sends, in units of the tensor;
# `naive`: all-reduce, then gather everything, then slice.)
@pytest.mark.parametrize(
    ("source", "target", "sent", "naive", "steps"),
    [
        # One collective each.
        ("(S0, S0)", "(S0, B)", 1 / 4, 3 / 4, ["all_gather[1] S0->B"]),
        ("(S0, S0)", "(B, B)", 3 / 4, 3 / 4, ["all_gather[0,1] S0->B"]),
        ("(P, P)", "(S1, S1)", 3 / 4, 3 / 2, ["reduce_scatter[0,1] P->S1"]),
        ("(P, B)", "(S1, B)", 1 / 2, 1, ["reduce_scatter[0] P->S1"]),
        ("(S0, S0)", "(S1, S1)", 3 / 16, 3 / 4, ["all_to_all[0,1] S0->S1"]),
        # Free.
        ("(B, B)", "(S0, S1)", 0, 0, ["slice[0] B->S0", "slice[1] B->S1"]),
        ("(S1, B)", "(P, S0)", 0, 1 / 2, ["slice[1] B->S0", "to_partial[0] S1->P"]),
        # The major axis of a nested split cannot be gathered alone.
        (
            "(S0, S0)",
            "(B, S0)",
            9 / 16,
            3 / 4,
            ["all_to_all[0,1] S0->S1", "all_to_all[1] S1->S0", "all_gather[0] S1->B"],
        ),
        # Two axes swap their dims.
        (
            "(S0, S1)",
            "(S1, S0)",
            7 / 16,
            3 / 4,
            ["all_to_all[1] S1->S0", "all_to_all[0,1] S0->S1", "all_to_all[1] S1->S0"],
        ),
        # Not a single reduce-scatter: axis 1, the minor one, splits dim 1 already.
        (
            "(P, S1)",
            "(S1, S1)",
            9 / 16,
            1,
            ["reduce_scatter[0] P->S0", "all_to_all[1] S1->S0", "all_to_all[0,1] S0->S1"],
        ),
        # The other way round it is.
        ("(S1, P)", "(S1, S1)", 1 / 4, 1, ["reduce_scatter[1] P->S1"]),
    ],
)
def test_paths_of_note(source, target, sent, naive, steps):
    mesh, spec = Mesh(2, 2), TensorSpec((64, 64))
    source, target = NdSbp.parse(source), NdSbp.parse(target)
    price = volume_price(mesh, spec)
    path = cheapest_path(spec, source, target, mesh, price)
    assert reached(source, path) == target
    assert [str(step) for step in path] == steps
    assert path_cost(spec, source, path, mesh, price) == pytest.approx(sent)
    assert path_cost(spec, source, full_gather(source), mesh, price) == pytest.approx(naive)


def full_gather(source):
    """All-reduce what is Partial, then gather every split dim."""
    labels = sorted(set(source) - {B}, key=lambda p: p.code)
    kinds: list[StepKind] = ["all_reduce" if p.is_partial else "all_gather" for p in labels]
    return [Step(k, source.axes_of(p), p, B) for k, p in zip(kinds, labels, strict=True)]


def test_to_become_partial_can_be_the_shortest_way():
    """Pad, slice and sum, as three axes cut other pieces: half of an all-gather and a slice."""
    mesh, spec = Mesh(2, 4), TensorSpec((64, 1))
    source, target = NdSbp.parse("(S0, B, B)"), NdSbp.parse("(B, S0, S0)")
    price = volume_price(mesh, spec)
    path = cheapest_path(spec, source, target, mesh, price)
    assert [str(s) for s in path] == [
        "to_partial[0] S0->P",
        "slice[1,2] B->S0",
        "all_reduce[0] P->B",
    ]
    assert path_cost(spec, source, path, mesh, price) == pytest.approx(1 / 4)
    assert path_cost(spec, source, full_gather(source), mesh, price) == pytest.approx(1 / 2)


def test_integers_are_never_padded_and_summed():
    mesh, spec = Mesh(2, 4), TensorSpec((64, 8), "int64")
    source, target = NdSbp.parse("(S0, B, B)"), NdSbp.parse("(B, S0, S0)")
    path = cheapest_path(spec, source, target, mesh, ring_price(mesh))
    assert reached(source, path) == target
    assert not any(step.kind == "to_partial" for step in path)
    with pytest.raises(ValueError, match="only floating-point tensors can become Partial"):
        cheapest_path(spec, source, NdSbp.parse("(P, B, B)"), mesh, ring_price(mesh))
    table = PathTable(mesh, ring_price(mesh))
    partial = NdSbp.parse("(P, B, B)").codes[None]
    assert table.seconds(spec, source.codes[None], partial) == [[np.inf]]
    assert np.isfinite(table.seconds(spec, partial, source.codes[None]))


@given(placed_tensors(count=2), st.integers(0, 3))
@settings(max_examples=25)
def test_a_path_is_the_cheapest_of_all(placed, seed):
    mesh, shape, source, target = placed
    if (len(shape) + 2) ** mesh.num_axes > 125:
        shape, source, target = shape[:1], *(fold(nd) for nd in (source, target))
    spec, table = float_spec(shape), path_table(mesh, seed)
    even = is_even(shape, source, mesh) and is_even(shape, target, mesh)
    path = table.path(spec, source, target)
    assert reached(source, path) == target
    every = dijkstra(
        spec, source, mesh, table.price, lambda nd: not even or is_even(shape, nd, mesh)
    )
    cost = path_cost(spec, source, path, mesh, table.price)
    assert cost == pytest.approx(every[target], rel=1e-9, abs=1e-15)


def fold(nd):
    """The same labels for a tensor of one dim."""
    return NdSbp.from_codes(np.minimum(nd.codes, 0))


@given(placed_tensors(count=5), st.integers(0, 3))
@settings(max_examples=60)
def test_the_table_agrees_with_the_paths(placed, seed):
    mesh, shape, *nds = placed
    spec, table = float_spec(shape), path_table(mesh, seed)
    sources, targets = nds[:3], nds[2:]
    seconds = table.seconds(
        spec, np.stack([nd.codes for nd in sources]), np.stack([nd.codes for nd in targets])
    )
    for (i, source), (j, target) in itertools.product(enumerate(sources), enumerate(targets)):
        path = table.path(spec, source, target)
        assert reached(source, path) == target
        if is_even(shape, source, mesh) and is_even(shape, target, mesh):
            cost = path_cost(spec, source, path, mesh, table.price)
            assert seconds[i, j] == pytest.approx(cost, rel=1e-9, abs=1e-15)
        else:
            assert seconds[i, j] == np.inf


@given(placed_tensors(count=2, even=True))
def test_a_path_never_costs_more_than_a_full_gather(placed):
    mesh, shape, source, target = placed
    spec = float_spec(shape)
    table = PathTable(mesh, volume_price(mesh, spec))
    cost = path_cost(spec, source, table.path(spec, source, target), mesh, table.price)
    assert cost <= path_cost(spec, source, full_gather(source), mesh, table.price) + 1e-12


def test_ties_go_to_the_fewest_steps():
    """With free collectives every path costs nothing."""
    mesh = Mesh(2, 2)
    table = PathTable(mesh, lambda kind, axes: (0.0, 0.0))
    states = [NdSbp.from_codes(codes) for codes in core_codes(mesh, 2)]
    spec = TensorSpec((8, 8))
    for source in states:
        hops = {source: 0}
        level = [source]
        while level:
            after = [s.apply(nd) for nd in level for s in legal_steps(nd, 2)]
            level = [nd for nd in dict.fromkeys(after) if nd not in hops]
            hops |= dict.fromkeys(level, max(hops.values()) + 1)
        for target in states:
            path = table.path(spec, source, target)
            assert len(path) == hops[target], f"{source} -> {target}"
            assert path == PathTable(mesh, table.price).path(spec, source, target)


@pytest.mark.parametrize(
    ("mesh", "ndim"),
    [(Mesh(2, 3), 2), (Mesh(4, 2), 2), (Mesh(3, 4), 1), (Mesh(1, 1), 2), (Mesh(4, 1), 0)],
)
def test_the_graph_has_the_legal_steps_and_no_others(mesh, ndim):
    graph = StateGraph.core(mesh, ndim)
    edges = {
        (graph.nd(int(src)), graph.step(edge), graph.nd(int(dst)))
        for edge, (src, dst) in enumerate(zip(graph.src, graph.dst, strict=True))
    }
    states = [NdSbp.from_codes(codes) for codes in graph.codes]
    assert len(set(states)) == (ndim + 2) ** mesh.num_axes
    assert edges == {(nd, s, s.apply(nd)) for nd in states for s in legal_steps(nd, ndim)}
    assert len(edges) == len(graph.src)


LARGE = Mesh(64, 4)  # eight axes
LARGE_SPEC = TensorSpec((1024, 512, 256))


def random_codes(count, seed, labels=(-2, -1, 0, 1, 2)):
    rng = np.random.default_rng(seed)
    return rng.choice(np.array(labels, dtype=np.int8), (count, LARGE.num_axes))


def test_a_large_mesh_keeps_the_simple_states():
    graph = StateGraph.core(LARGE, 3)
    assert len(graph.codes) < 8000
    for text in ("(B, B, B, B, B, B, B, B)", "(S0, S0, B, B, B, S1, S1, S1)"):
        assert graph.rows(NdSbp.parse(text).codes[None])[0] >= 0
    assert graph.rows(np.array([[0, 1, 0, 1, 0, 1, 0, 1]], dtype=np.int8))[0] == -1


def test_a_scalar_on_many_axes_has_few_states_and_every_sum_of_it_a_path():
    mesh, spec = Mesh(1024, 8), TensorSpec(())
    assert len(StateGraph.core(mesh, 0).codes) <= 1024
    table = PathTable(mesh, ring_price(mesh))
    for text in ("PPPPPPPPPPPPP", "PBPBPPBBPBPPB"):
        source = NdSbp.parse(f"({', '.join(text)})")
        assert reached(source, table.path(spec, source, NdSbp.broadcast(13))) == NdSbp.broadcast(13)


def test_states_that_all_fit_the_core_are_all_there():
    """Three axes and 15 dims: more than FULL_STATES, fewer than LARGE_CORE."""
    codes = core_codes(Mesh(2, 4), 15)
    assert len(np.unique(codes, axis=0)) == len(codes) == 17**3


def test_a_large_mesh_reaches_every_state_at_the_price_of_its_path():
    table = PathTable(LARGE, ring_price(LARGE))
    simple = core_codes(LARGE, 3)[::900]
    sources = np.concatenate([random_codes(6, 1), simple])
    targets = np.concatenate([random_codes(6, 2), sources[:1], simple])
    seconds = table.seconds(LARGE_SPEC, sources, targets)
    assert np.isfinite(seconds).all() and seconds[0, 6] == 0
    for i, j in itertools.product(range(0, len(sources), 2), range(0, len(targets), 3)):
        source, target = NdSbp.from_codes(sources[i]), NdSbp.from_codes(targets[j])
        path = table.path(LARGE_SPEC, source, target)
        assert reached(source, path) == target
        cost = path_cost(LARGE_SPEC, source, path, LARGE, table.price)
        assert cost == pytest.approx(seconds[i, j], rel=1e-9, abs=1e-15)


def test_a_pair_on_a_large_mesh_costs_the_same_in_any_company():
    table = PathTable(LARGE, ring_price(LARGE))
    sources, targets = random_codes(12, 3), random_codes(12, 4)
    together = table.seconds(LARGE_SPEC, sources, targets)
    for i in range(0, 12, 4):
        alone = table.seconds(LARGE_SPEC, sources[i : i + 1], targets[::3])
        np.testing.assert_allclose(alone[0], together[i, ::3], rtol=1e-12)
    assert cheapest_path(
        LARGE_SPEC,
        NdSbp.from_codes(sources[0]),
        NdSbp.from_codes(targets[0]),
        LARGE,
        table.price,
    ) == table.path(LARGE_SPEC, NdSbp.from_codes(sources[0]), NdSbp.from_codes(targets[0]))


def test_the_core_of_a_large_mesh_is_nearly_exact(monkeypatch):
    """Six axes, where all states can still be had: within a few per cent on simple placements."""
    mesh, spec = Mesh(16, 4), TensorSpec((8192, 8192))
    exact = PathTable(mesh, ring_price(mesh))
    monkeypatch.setattr("autoddl.sbp.states.FULL_STATES", 0)
    monkeypatch.setattr("autoddl.sbp.states.LARGE_CORE", 2000)
    simple = core_codes(mesh, 2)
    rng = np.random.default_rng(0)
    sources, targets = (simple[rng.choice(len(simple), 60)] for _ in range(2))
    near = PathTable(mesh, ring_price(mesh)).seconds(spec, sources, targets)
    monkeypatch.undo()
    best = exact.seconds(spec, sources, targets)
    assert (near >= best * (1 - 1e-9)).all()
    assert near.sum() <= 1.05 * best.sum()


def test_uneven_states_are_out_of_the_table_but_have_paths():
    mesh, spec = Mesh(2, 2), TensorSpec((6, 4))
    table = PathTable(mesh, ring_price(mesh))
    uneven, whole = NdSbp.parse("(S0, S0)"), NdSbp.parse("(B, B)")
    codes = np.stack([uneven.codes, whole.codes])
    seconds = table.seconds(spec, codes, codes)
    assert np.isinf(seconds[0]).all() and np.isinf(seconds[:, 0]).all() and seconds[1, 1] == 0
    assert reached(uneven, table.path(spec, uneven, whole)) == whole


def test_one_device_and_no_pairs():
    mesh, spec = Mesh(1, 1), TensorSpec((4,))
    table = PathTable(mesh, ring_price(mesh))
    nothing = np.empty((1, 0), dtype=np.int8)
    assert table.seconds(spec, nothing, nothing) == [[0.0]]
    assert table.path(spec, NdSbp(()), NdSbp(())) == ()
    assert table.seconds(spec, nothing[:0], nothing).shape == (0, 1)


def test_a_scalar_is_reduced():
    mesh, spec = Mesh(2, 2), TensorSpec(())
    path = cheapest_path(spec, NdSbp.parse("(P, P)"), NdSbp.parse("(B, B)"), mesh, ring_price(mesh))
    assert [str(s) for s in path] == ["all_reduce[0] P->B", "all_reduce[1] P->B"]


def test_codes_and_placements_that_do_not_fit_are_refused():
    mesh, spec = Mesh(2, 2), TensorSpec((4, 4))
    table = PathTable(mesh, ring_price(mesh))
    good = np.zeros((1, 2), dtype=np.int8)
    with pytest.raises(ValueError, match=r"are an array \[n, 2\], got \[1, 3\]"):
        table.seconds(spec, np.zeros((1, 3), dtype=np.int8), good)
    with pytest.raises(ValueError, match="are -2 to 1, got 2 to 2"):
        table.seconds(spec, good, good + np.int8(2))
    with pytest.raises(ValueError, match="splits dim 2 on axis 0"):
        table.path(spec, NdSbp.parse("(S2, B)"), NdSbp.parse("(B, B)"))


# ---- paths read backwards


def test_dual_swaps_partial_and_broadcast():
    codes, swapped = (NdSbp.parse(text).codes for text in ("(S1, B, P)", "(S1, P, B)"))
    assert (dual(codes) == swapped).all()
    assert (dual(dual(codes)) == codes).all()


@given(placed_tensors(count=4, even=True))
@settings(max_examples=40)
def test_dual_paths_cost_the_same(placed):
    mesh, shape, *nds = placed
    spec, table = float_spec(shape), PathTable(mesh, ring_price(mesh))
    codes = np.stack([nd.codes for nd in nds])
    assert table.has_duals(spec, codes)
    seconds = table.seconds(spec, codes[:2], codes[2:])
    mirrored = table.seconds(spec, dual(codes[2:]), dual(codes[:2])).T
    np.testing.assert_allclose(mirrored, seconds, rtol=1e-9, atol=1e-15)


def test_the_core_of_a_large_mesh_has_duals_and_renamings():
    """Eight axes: too many states to have all, and no search knows of the symmetries."""
    for mesh in (Mesh(256, 1), Mesh(64, 4)):
        table = PathTable(mesh, ring_price(mesh))
        core = core_codes(mesh, 3)
        spec = TensorSpec((4096, 512, 256))
        rng = np.random.default_rng(1)
        sources, targets = (core[rng.choice(len(core), 12)] for _ in range(2))
        plain = table.seconds(spec, sources, targets, backwards=False)
        turned = np.array([2, 0, 1, -2, -1], dtype=np.int8)  # new names of the dims; P and B stay
        for other in (
            table.seconds(spec, turned[sources], turned[targets]),
            table.seconds(spec, dual(targets), dual(sources)).T,
            table.seconds(spec, sources, targets, backwards=True),
        ):
            np.testing.assert_allclose(other, plain, rtol=1e-9)


def test_prices_without_sense_have_no_duals():
    mesh = Mesh(2, 2)
    spec = float_spec((4, 4))
    assert not PathTable(mesh, odd_price(mesh, 3)).has_duals(spec)
    assert not PathTable(mesh, ring_price(mesh)).has_duals(TensorSpec((4, 4), "int64"))
