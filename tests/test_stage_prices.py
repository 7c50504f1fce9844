"""Prices of stages on large sub-meshes: one search, and a line through two accounts of it."""

import dataclasses

import pytest

from autoddl import stage_prices
from autoddl.cost.model import CostModel
from autoddl.pipeline.cut import cut_graph
from autoddl.stage_prices import StagePrices
from tests.clusters import cluster
from tests.graphs import mlp, tied

MACHINE = cluster("gcp_a100", 2, 2)


def test_other_numbers_of_micro_batches_lie_on_the_line(monkeypatch):
    """On one device nothing is chosen, so the line must give what a search at each number gives."""
    cut = cut_graph(mlp(64, (32, 64, 64, 32)))
    model = CostModel(cluster("gcp_a100", 1, 1))
    exact = StagePrices(cut, model)
    monkeypatch.setattr(stage_prices, "_LARGE", 0)
    line = StagePrices(cut, model, searched=(4, 2))
    for first, last in ((0, 3), (1, 2), (2, 3)):
        for count in (1, 2, 4, 8, 16):
            ours, wanted = (p.price(first, last, (1, 1), count, 1) for p in (line, exact))
            assert ours is not None and wanted is not None
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(wanted), rel=1e-6)


def test_two_numbers_are_searched_once(monkeypatch):
    monkeypatch.setattr(stage_prices, "_LARGE", 0)
    prices = StagePrices(cut_graph(tied(16, 16)), CostModel(MACHINE), searched=(4, 2))
    known = [prices.price(0, 1, (2, 2), count, 1) for count in (2, 4, 8)]
    assert list(prices._accounts) == [(2, 2)]
    assert all(p is not None and p.forward_s > 0 for p in known)
    assert known[0].forward_s > known[1].forward_s > known[2].forward_s  # type: ignore[union-attr]


def test_bytes_that_a_run_sends():
    graph = mlp(64, (32, 64, 128, 32))
    cut = cut_graph(graph)
    prices = StagePrices(cut, CostModel(MACHINE))
    for first in range(len(cut.layers)):
        for last in range(first + 1, len(cut.layers) + 1):
            wanted = sum(graph.tensors[name].spec.bytes for name in cut.sent(first, last))
            assert prices._bytes_sent[first, last][0] == wanted


def test_all_runs_at_once():
    cut = cut_graph(tied(16, 16))
    free = StagePrices(cut, CostModel(MACHINE)).price(0, 2, (2, 2), 2, 2)
    assert free is not None
    prices = StagePrices(cut, CostModel(MACHINE, memory_limit_bytes=0.5 * free.memory_bytes(2)))
    fits = 0
    for held in (1, 2, 4):
        each, once = prices.times((2, 2), 2, held)
        for first in range(len(cut.layers)):
            assert all(each[first, : first + 1] == float("inf"))
            for last in range(first + 1, len(cut.layers) + 1):
                wanted = prices.price(first, last, (2, 2), 2, held)
                assert wanted is not None
                if wanted.memory_bytes(held) <= prices.model.limit_bytes:
                    fits += 1
                    assert each[first, last] == pytest.approx(wanted.forward_s + wanted.backward_s)
                    assert once[first, last] == pytest.approx(wanted.once_s)
                else:
                    assert each[first, last] == float("inf")
    assert 0 < fits < 9
