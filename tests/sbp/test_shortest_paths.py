"""Relaxation in rounds against a search from each start."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from autoddl.sbp import shortest_paths
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.shortest_paths import Rounds, lengths
from autoddl.sbp.states import StateGraph


def use(monkeypatch, how):
    if "loops" not in how:
        monkeypatch.setattr(shortest_paths, "loops", lambda: None)


@pytest.mark.parametrize("how", ["one by one", "one by one in loops", "arrays", "threads", "loops"])
@pytest.mark.parametrize("backwards", [False, True])
def test_lengths_are_those_of_the_cheapest_ways(monkeypatch, backwards, how):
    use(monkeypatch, how)
    monkeypatch.setattr(shortest_paths, "FEW_STARTS", 100 if "one by one" in how else 0)
    monkeypatch.setattr(shortest_paths, "_WORTH_THREADS", 0 if how == "threads" else 10**12)
    monkeypatch.setattr(shortest_paths, "_CHUNK", 8)
    graph = StateGraph.core(Mesh(4, 2), 2)
    size = len(graph.codes)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        weights = rng.integers(0, 5, len(graph.src)) / 4.0  # zeros and ties as well
        weights[rng.random(len(weights)) < 0.7] = np.inf
        there = np.isfinite(weights)
        ends = (graph.src[there], graph.dst[there])
        matrix = csr_matrix((weights[there], ends[::-1] if backwards else ends), (size, size))
        starts = rng.choice(size, 24, replace=False)
        expected = dijkstra(matrix, indices=starts)
        assert np.isinf(expected).any()
        found = lengths(graph, weights, starts, np.arange(size), backwards=backwards)
        assert (found == expected).all()


def test_no_round_has_two_edges_to_one_node():
    rng = np.random.default_rng(0)
    keys, ends = rng.integers(0, 4, 200), rng.integers(0, 10, 200)
    rounds = Rounds.of(keys, ends)
    assert sorted(rounds.order) == list(range(200))
    assert (np.diff(keys[rounds.order]) >= 0).all()
    for low, high in zip(rounds.bounds[:-1], rounds.bounds[1:], strict=True):
        edges = rounds.order[low:high]
        assert len(set(ends[edges])) == len(edges) > 0
        assert len(set(keys[edges])) == 1
    assert (np.diff(keys[rounds.order[rounds.bounds[rounds.turns]]]) > 0).all()


def test_later_rounds_of_a_turn_end_at_the_first_nodes_of_its_first_round():
    rng = np.random.default_rng(1)
    keys, ends = rng.integers(-2, 2, 300), rng.integers(0, 20, 300) ** 2 // 20
    rounds = Rounds.of(keys, ends)
    bounds, turns = rounds.bounds, [*rounds.turns, len(rounds.bounds) - 1]
    for first, last in zip(turns[:-1], turns[1:], strict=True):
        every = ends[rounds.order[bounds[first] : bounds[first + 1]]]
        assert {*every} == {*ends[rounds.order[bounds[first] : bounds[last]]]}
        for number in range(first, last):
            own = ends[rounds.order[bounds[number] : bounds[number + 1]]]
            assert (own == every[: len(own)]).all()


@pytest.mark.parametrize("number", [8, 150])
@pytest.mark.parametrize("how", ["one by one", "one by one in loops", "arrays", "loops"])
def test_edges_may_share_rows_of_prices(monkeypatch, how, number):
    use(monkeypatch, how)
    monkeypatch.setattr(shortest_paths, "FEW_STARTS", 100 if "one by one" in how else 0)
    rng = np.random.default_rng(number)
    nodes, starts = 60, np.arange(50)
    src, dst = np.divmod(rng.choice(nodes * nodes, 300, replace=False), nodes)
    rows = rng.random((number, 3)).astype(np.float32)
    rows[rng.random(len(rows)) < 0.2] = 0.0
    rows[rng.random(rows.shape) < 0.1] = np.inf
    priced = rng.integers(0, number, 300)

    def order():
        return (Rounds.of(src % 7, dst),)

    which = starts // 20
    found = shortest_paths.follow(nodes, src, dst, rows, order, starts, which, priced)
    for column in range(3):
        weights = rows[priced, column].astype(float)
        there = np.isfinite(weights)
        expected = np.full((nodes, nodes), np.inf)
        np.minimum.at(expected, (src[there], dst[there]), weights[there])
        np.fill_diagonal(expected, 0.0)
        for middle in range(nodes):
            expected = np.minimum(expected, expected[:, [middle]] + expected[[middle]])
        own = which == column
        assert np.allclose(found[own], expected[starts[own]], rtol=1e-5)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_compiled_loops_and_arrays_give_the_same_bits(monkeypatch, precision):
    rng = np.random.default_rng(3)
    nodes, starts = 60, np.arange(50)
    src, dst = rng.integers(0, nodes, (2, 300))
    weights = rng.random((300, 3)).astype(precision)
    weights[rng.random(weights.shape) < 0.2] = np.inf
    weights[rng.random(weights.shape) < 0.1] = 0.0
    asked = nodes, src, dst, weights, lambda: (Rounds.of(src % 7, dst),), starts, starts // 20
    found = shortest_paths.follow(*asked)
    monkeypatch.setattr(shortest_paths, "loops", lambda: None)
    expected = shortest_paths.follow(*asked)
    assert found.dtype == precision
    assert np.isfinite(found).any() and np.array_equal(found, expected)
