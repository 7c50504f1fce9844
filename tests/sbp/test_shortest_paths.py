"""Cheapest paths against the least of all sums, with and without compiled loops."""

import numpy as np
import pytest

from autoddl.sbp import states
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.states import StateGraph, lengths


def least_sums(nodes, src, dst, weights):
    """[nodes, nodes] by Floyd and Warshall's algorithm."""
    expected = np.full((nodes, nodes), np.inf)
    np.minimum.at(expected, (src, dst), weights)
    np.fill_diagonal(expected, 0.0)
    for middle in range(nodes):
        np.minimum(expected, expected[:, [middle]] + expected[middle], out=expected)
    return expected


def by_source(nodes, src, dst, weights):
    """What `lengths` takes."""
    order = np.argsort(src, kind="stable")
    begins = np.searchsorted(src[order], np.arange(nodes + 1))
    return begins, dst[order], weights[order]


def random_edges(rng, nodes, count):
    """Parallel edges, zeros, ties and edges that are not there."""
    src, dst = rng.integers(0, nodes, (2, count))
    weights = rng.integers(0, 5, count) / 4.0  # sums are exact
    weights[rng.random(count) < 0.3] = np.inf
    return src, dst, weights


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("count", [0, 20, 150, 600])
def test_lengths_are_the_least_sums(monkeypatch, compiled, count):
    if not compiled:
        monkeypatch.setattr(states, "loops", lambda: None)
    monkeypatch.setattr(states, "_AT_ONCE", 8)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        edges = random_edges(rng, 40, count)
        order, starts = rng.permutation(40), rng.permutation(40)[: 5 * seed]
        found = lengths(*by_source(40, *edges), order, starts)
        assert np.array_equal(found, least_sums(40, *edges)[starts])
        ends = rng.permutation(40)[:7]
        assert np.array_equal(lengths(*by_source(40, *edges), order, starts, ends), found[:, ends])


def test_compiled_loops_and_scipy_give_the_same_bits(monkeypatch):
    graph, rng = StateGraph.core(Mesh(4, 2), 2), np.random.default_rng(3)
    weights = rng.random(len(graph.src))
    weights[rng.random(len(weights)) < 0.7] = np.inf
    size, starts = len(graph.codes), rng.integers(0, len(graph.codes), 100)
    edges = (graph.src, graph.dst), (graph.dst, graph.src)
    ways = [by_source(size, *ends, weights) for ends in edges]
    order = rng.permutation(size)
    found = [lengths(*way, order, starts) for way in ways]
    monkeypatch.setattr(states, "loops", lambda: None)
    for way, own in zip(ways, found, strict=True):
        assert np.isinf(own).any() and np.isfinite(own).any()
        assert np.array_equal(own, lengths(*way, order, starts))
