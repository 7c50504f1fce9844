"""Prices of stages; on large sub-meshes one search, and a line through two accounts of it."""

import dataclasses
import itertools

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.graph.cut import cut_graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.stages import stage_prices
from autoddl.planner.stages.stage_prices import StagePrices
from autoddl.planner.stages.stage_search import Answer, Searched, shorten, sweep
from autoddl.planner.stages.task import Shape
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.search.budget import Deadline
from autoddl.search.problem import Choice, Edge, Problem
from tests.clusters import cluster
from tests.graphs import attention, compared, mlp, tied

MACHINE = cluster("gcp_a100", 2, 2)
MLP = mlp(16, (32, 64, 64, 64, 32))
DEEP = attention(8, 8, 6, 16, 2)


def test_other_numbers_of_micro_batches_lie_on_the_line(monkeypatch):
    """On one device nothing is chosen, so the line must give what a search at each number gives."""
    cut = cut_graph(mlp(64, (32, 64, 64, 32)))
    model = CostModel(cluster("gcp_a100", 1, 1))
    exact = StagePrices(cut, model)
    monkeypatch.setattr(stage_prices, "LARGE", 0)
    line = StagePrices(cut, model, (1, 2, 4, 8, 16))
    for first, last in ((0, 3), (1, 2), (2, 3)):
        for count in (1, 2, 4, 8, 16):
            ours, wanted = (p.price(first, last, Shape(1, 1), count, 1) for p in (line, exact))
            assert ours is not None and wanted is not None
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(wanted), rel=1e-6)


def test_one_number_is_searched_until_more_are_asked_for(monkeypatch):
    monkeypatch.setattr(stage_prices, "LARGE", 0)
    prices = StagePrices(cut_graph(tied(16, 16)), CostModel(MACHINE), (2, 4, 8))
    known = [prices.price(0, 1, Shape(2, 2), count, 1) for count in (2, 4, 8)]
    assert list(prices._searched[Shape(2, 2)]) == [2]
    assert known[0] is not None and known[1] is not None
    assert known[0].forward_s > known[1].forward_s > 0
    assert prices.refine(Shape(2, 2), 8) and not prices.refine(Shape(2, 2), 8)
    assert list(prices._searched[Shape(2, 2)]) == [2, 8]


def test_what_seems_hopeless_is_searched_where_nothing_smaller_fits(monkeypatch):
    """Two stages on four hosts have two each; GPT of 6.8 billion parameters on 8x8 was refused."""
    monkeypatch.setattr(stage_prices, "LARGE", 0)
    plan = find_plan(DEEP, cluster("gcp_a100", 4, 1), PlanOptions(stages=2, baselines=False))
    plan.verify()
    assert len(plan.stages) == 2


def test_more_micro_batches_may_do_without_recomputation():
    """The least number with which what is in flight fits, were all divided evenly."""
    cut, counts = cut_graph(attention(4, 64, 16, 32, 4)), (1, 2, 4, 8, 16, 32, 64)
    model = CostModel(MACHINE)
    limits = {1e9: 1, 1e6: 4, 5e5: 8, 3e5: 16, 2e5: 32, 1e5: None}
    for limit, count in limits.items():
        limited = dataclasses.replace(model, memory_limit_bytes=limit)
        assert StagePrices(cut, limited, counts).keeping_count(Shape(1, 2)) == count


def test_a_number_that_the_splits_do_not_divide_has_no_price():
    layers = np.ones((2, 5)), np.zeros(1), ()
    found = Searched(2, Answer(*layers), (1, Answer(*layers)), frozenset({(32, 4), (8, 2)}), {})
    assert found.at(4) is not None  # 8 rows in 4 parts, 2 in 2
    assert found.at(8) is None  # 1 in 2


def test_mixtures_just_fit():
    """Half of the layers as one answer says and half as the other."""
    big = np.array([[[1.0, 2.0, 0.0, 10.0, 0.0, 0.0]]])
    small = np.array([[[3.0, 4.0, 2.0, 4.0, 0.0, 0.0]]])
    again = np.array([[[9.0, 9.0, 9.0, 1.0, 0.0, 1.0]]])
    assert (stage_prices._fastest([big, small], 1, 1, 7.0)[0, 0, :3] == [2.0, 3.0, 1.0]).all()
    assert (stage_prices._fastest([big, small], 1, 1, 10.0) == big).all()
    assert (stage_prices._fastest([big, again], 1, 1, 7.0) == again).all()
    assert np.isinf(stage_prices._fastest([big, small], 1, 1, 3.0)).all()


@pytest.mark.parametrize(
    "graph", [mlp(64, (32, 64, 128, 32)), compared(8, 16)], ids=lambda graph: graph.name
)
def test_bytes_that_a_run_sends_and_gets_back(graph):
    cut = cut_graph(graph)
    prices = StagePrices(cut, CostModel(MACHINE))
    for first in range(len(cut.layers)):
        for last in range(first + 1, len(cut.layers) + 1):
            ends = [op for op in cut.stage(first, last).ops if op.kind == "stage_output"]
            sizes = [graph.tensors[op.attrs["tensor"]].spec.bytes for op in ends]
            back = sum(n for n, op in zip(sizes, ends, strict=True) if op.attrs["gradient"])
            assert tuple(prices._bytes_sent[first, last]) == (sum(sizes), back)


def test_all_runs_at_once():
    cut = cut_graph(tied(16, 16))
    free = StagePrices(cut, CostModel(MACHINE)).price(0, 2, Shape(2, 2), 2, 2)
    assert free is not None
    prices = StagePrices(cut, CostModel(MACHINE, memory_limit_bytes=0.5 * free.memory_bytes(2)))
    fits = 0
    for held in (1, 2, 4):
        each, once = prices.times(Shape(2, 2), 2, held)
        for first in range(len(cut.layers)):
            assert all(each[first, : first + 1] == float("inf"))
            for last in range(first + 1, len(cut.layers) + 1):
                wanted = prices.price(first, last, Shape(2, 2), 2, held)
                assert wanted is not None
                if wanted.memory_bytes(held) <= prices.model.limit_bytes:
                    fits += 1
                    assert each[first, last] == pytest.approx(wanted.forward_s + wanted.backward_s)
                    assert once[first, last] == pytest.approx(wanted.once_s)
                else:
                    assert each[first, last] == float("inf")
    assert 0 < fits < 9


def test_price_of_all_layers_is_the_plans_own():
    """On one device nothing is chosen, so the sums over layers are the account of the plan."""
    machine = cluster("gcp_a100", 1, 1)
    prices = StagePrices(cut_graph(MLP), CostModel(machine))
    whole = prices.price(0, 4, Shape(1, 1), 4, 1)
    assert whole is not None
    plan = find_plan(MLP, machine, PlanOptions(micro_batches=4))
    assert dataclasses.astuple(whole) == pytest.approx(
        dataclasses.astuple(stage_figures(plan.stage).price)
    )
    cost = figures(plan).cost
    assert 4 * (whole.forward_s + whole.backward_s) + whole.once_s == pytest.approx(
        cost.iteration_s
    )
    last_gradients = 4 * (4 * 64 + 64 * 32)  # of the last product's input and weight
    other_data = 3 * 4 * 4 * 32  # of the micro-batches that are not in flight
    assert whole.memory_bytes(1) == pytest.approx(cost.memory_bytes - last_gradients - other_data)
    parts = [prices.price(a, b, Shape(1, 1), 4, 1) for a, b in ((0, 1), (1, 3), (3, 4))]
    for name in ("forward_s", "backward_s", "fixed_bytes", "stash_bytes"):
        assert sum(getattr(p, name) for p in parts) == pytest.approx(getattr(whole, name))


def test_equal_layers_are_priced_once():
    """The shortened model's prices are what the search of all of it gives, but for the joints."""
    cut = cut_graph(DEEP, most_layers=8)
    short = shorten(cut)
    assert len(short.graph.ops) < len(DEEP.ops)
    assert sorted(n for layers in short.stands_for.values() for n in layers) == list(range(8))
    found = StagePrices(cut, CostModel(MACHINE)).price(0, 8, Shape(2, 2), 1, 1)
    assert found is not None
    plan = find_plan(DEEP, MACHINE, PlanOptions(micro_batches=1))
    assert found.forward_s + found.backward_s + found.once_s == pytest.approx(
        figures(plan).cost.iteration_s, rel=0.15
    )


def test_a_smaller_memory_gets_a_smaller_answer():
    free = StagePrices(cut_graph(MLP), CostModel(MACHINE)).price(0, 4, Shape(2, 2), 1, 1)
    assert free is not None
    model = CostModel(MACHINE, memory_limit_bytes=0.6 * free.memory_bytes(1))
    tight = StagePrices(cut_graph(MLP), model).price(0, 4, Shape(2, 2), 1, 1)
    assert tight is not None and tight.memory_bytes(1) <= model.limit_bytes
    assert tight.forward_s + tight.backward_s + tight.once_s >= free.forward_s


def test_what_elimination_leaves_over_is_chosen_with_all_that_it_reads():
    """Four variables that should agree: as decoders on the encoder whose output they all read.

    Each at the best of its own scores would pay 10 for four pairs.
    """
    pairs = list(itertools.combinations(range(4), 2))
    apart = np.array([[0.0, 10.0], [10.0, 0.0]])
    problem = Problem(
        (np.array([0.0, 1.0]), np.array([1.0, 0.0])), (np.ones(2),) * 2, (apart,),
        (np.zeros((2, 2)),), (0, 1, 0, 1), tuple(Edge(a, b, 0) for a, b in pairs),
    )  # fmt: skip
    found: list[float] = []

    def offer(choice: Choice) -> bool:
        found.append(problem.evaluate(choice)[0])
        return True

    sweep(problem, offer, Deadline(1.0))
    assert found == [2.0]
