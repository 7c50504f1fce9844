"""One or two micro-batches in flight: whichever is faster, a bound of both, and what is refused."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.asked import cost_model
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.groups import MicroBatches
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import build_tables
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.report.terminal import explain
from autoddl.plans.schedule.buckets import best_buckets
from autoddl.plans.stage_figures import stage_figures
from autoddl.search.problem import SearchResult
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp

LEFT = 1e-4  # the gap that a search may leave by default
OPTIONS = PlanOptions(overlap=True, baselines=False, zero=False, memory_limit_bytes=math.inf)


def slow(machine: Cluster, times: float) -> Cluster:
    """The cluster with links between hosts so many times as slow, and no latencies."""
    inter = dataclasses.replace(
        machine.inter, alpha_s=0.0, beta_s_per_byte=machine.inter.beta_s_per_byte * times
    )
    intra = dataclasses.replace(machine.intra, alpha_s=0.0)
    device = dataclasses.replace(machine.device, launch_s=0.0)
    return dataclasses.replace(machine, inter=inter, intra=intra, device=device)


def best_of_all(graph: Graph, machine: Cluster, in_flight: int, parts: int) -> float:
    """Seconds of the fastest of all plans."""
    model = cost_model(graph, machine, OPTIONS)
    micro = MicroBatches.of(graph, in_flight)
    prices = PairPrices(machine.mesh, model.comm.price, model.comm.collectives)
    grouping, again = micro.grouping(parts), micro.again(parts, ())
    space = Space(zero=False)
    tables = build_tables(grouping.graph, model, parts, space, prices, again, grouping)
    assert tables is not None
    best = math.inf
    for choice in itertools.product(*map(range, tables.problem.sizes())):
        found = np.array(choice)
        cost, memory = tables.problem.evaluate(found)
        if cost / 2 < best:  # there are two queues
            result = SearchResult(found, cost, memory, 1, "each")
            best = min(best, Candidate(tables, result, prices.paths).step_s)
    return best


def random_problem(rng: np.random.Generator) -> tuple[Graph, Cluster]:
    """A model of few operators on two hosts, whose link is anything from fast to slow."""
    rows = int(2 ** rng.integers(6, 12))
    widths = tuple(int(2 ** rng.integers(6, 12)) for _ in range(int(rng.integers(2, 5))))
    machine = cluster(str(rng.choice(["laptop", "gcp_a100", "piz_daint"])), 2, 1)
    return mlp(rows, widths), slow(machine, float(2.0 ** rng.integers(-3, 6)))


def hold_to_all(seed: int) -> tuple[float, int]:
    """How far the plan is from the best of all, and how many it has in flight."""
    graph, machine = random_problem(np.random.default_rng(seed))
    plan = find_plan(graph, machine, OPTIONS)
    best = min(best_of_all(graph, machine, 1, 1), best_of_all(graph, machine, 2, 2))
    bound = plan.stage.search.lower_bound_s
    assert bound is not None
    assert bound <= best * (1 + 1e-6)
    return figures(plan).iteration_s / best - 1, plan.stage.in_flight


def test_plans_are_the_best_of_all_strategies_with_one_or_two_in_flight():
    """The first of those below, and one whose best step is far above its bound."""
    found = [hold_to_all(seed) for seed in (*range(1000, 1004), 10)]
    assert max(gap for gap, _ in found) <= LEFT
    assert {held for _, held in found} == {1, 2}


@pytest.mark.full
def test_of_many_plans_nearly_all_are_the_best_of_all():
    """All 200 when this was written."""
    gaps = np.array([hold_to_all(seed)[0] for seed in range(1000, 1200)])
    assert (gaps <= LEFT).mean() >= 0.95
    assert gaps.max() < 0.01


def test_of_two_blocks_of_attention_no_plan_is_better():
    """At prices of computation and communication it is 12 % slower, and a gap of 20 % is left."""
    machine = slow(cluster("laptop", 2, 1), 8.0)
    plan = find_plan(attention(2, 16, 64, 128, 4), machine, PlanOptions(overlap=True))
    gap = stage_figures(plan.stage).gap
    assert gap is not None
    assert gap <= LEFT


SLOWER = [
    (mlp(64, (512, 512)), cluster("laptop", 2, 2)),
    (mlp(1024, (512, 1024, 512)), cluster("piz_daint", 4, 1)),
    (attention(2, 64, 32, 64, 4), cluster("gcp_a100", 8, 8)),
    random_problem(np.random.default_rng(31)),
]


@pytest.mark.parametrize(("graph", "machine"), SLOWER)
def test_a_plan_takes_no_longer_than_the_serial_one_with_its_exchange_hidden(
    graph: Graph, machine: Cluster
):
    serial = find_plan(graph, machine, dataclasses.replace(OPTIONS, overlap=False)).stage
    buckets = best_buckets(stage_figures(serial).maker)
    hidden_s = stage_figures(dataclasses.replace(serial, buckets=buckets)).cost.iteration_s
    one, other = (find_plan(graph, machine, OPTIONS) for _ in range(2))
    assert figures(one).iteration_s <= hidden_s * (1 + 1e-9)
    seconds = dataclasses.replace(one.stage.search, seconds=other.stage.search.seconds)
    same = dataclasses.replace(one.stage, search=seconds)
    assert Plan.on_one_mesh(same).dumps() == Plan.on_one_mesh(other.stage).dumps()


def test_one_in_flight_is_sought_at_its_own_price_where_two_gain_nothing():
    """Two looked better by their bound: the plan was 3.5 % slower than if they were not allowed."""
    graph, machine = mlp(4096, (256,) * 6), cluster("laptop", 4, 2)
    options = PlanOptions(memory_limit_bytes=1.2e7, baselines=False)
    one, either = (
        find_plan(graph, machine, dataclasses.replace(options, in_flight=held))
        for held in (1, None)
    )
    assert either.in_flight == (1,)
    assert figures(either).iteration_s <= figures(one).iteration_s * (1 + LEFT)


def test_where_communication_is_hidden_two_are_in_flight_and_it_is_told():
    graph, machine = random_problem(np.random.default_rng(5))
    one, two, chosen = (
        find_plan(graph, machine, dataclasses.replace(OPTIONS, in_flight=held))
        for held in (1, 2, None)
    )
    assert [plan.in_flight for plan in (one, two, chosen)] == [(1,), (2,), (2,)]
    assert figures(two).iteration_s < 0.95 * figures(one).iteration_s
    assert figures(chosen).iteration_s == pytest.approx(figures(two).iteration_s)
    assert 0 < chosen.stage.search.lower_bound_s <= figures(two).iteration_s  # type: ignore[operator]
    told = explain(chosen)
    assert "in 2 micro-batches, 2 in flight" in told
    assert "one computes while the other communicates" in told
    timeline = figures(chosen).timeline
    assert {span.action.micro_batch for span in timeline.spans} == {0, 1}
    kinds = [s.action.micro_batch for s in timeline.spans if s.action.kind == "F"]
    assert len(kinds) > 2  # the two take turns


def test_on_one_fast_host_one_is_in_flight_and_nothing_is_tried():
    plan = find_plan(attention(2, 64, 32, 64, 4), cluster("gcp_a100", 1, 4), OPTIONS)
    assert plan.in_flight == (1,)


def test_what_two_in_flight_hold_is_known():
    graph, machine = attention(4, 64, 32, 64, 4), cluster("laptop", 2, 2)
    two = find_plan(graph, machine, dataclasses.replace(OPTIONS, in_flight=2))
    alone = dataclasses.replace(two.stage, turns=(), in_flight=1)
    known, serial = stage_figures(two.stage), stage_figures(alone)
    held = serial.memory_peak("executor")
    own = held.bytes - sum(held.always.values())
    assert held.bytes + 0.5 * own < known.required_bytes() <= held.bytes + own
    least = known.required_bytes() * 0.999
    tight = dataclasses.replace(OPTIONS, in_flight=2, memory_limit_bytes=least)
    other = find_plan(graph, machine, tight)
    assert stage_figures(other.stage).required_bytes() <= least


def test_known_schemes_have_two_in_flight_where_that_is_faster():
    graph, machine = random_problem(np.random.default_rng(5))
    one, both = (
        find_plan(graph, machine, dataclasses.replace(OPTIONS, in_flight=held, baselines=True))
        for held in (1, None)
    )
    pairs = list(zip(one.baselines, both.baselines, strict=True))
    seconds = [(a.iteration_s or math.inf, b.iteration_s or math.inf) for a, b in pairs]
    assert all(b <= a * (1 + 1e-9) for a, b in seconds)
    assert any(b < a * 0.95 for a, b in seconds)


def against_itself() -> Graph:
    """The product of the batch with itself."""
    b = Builder(8)
    h = b.linear("fc", b.input(0, (8, 16)), 16)
    out = b.op("product", "matmul", (h, h), (8, 8), transpose_a=False, transpose_b=True, alpha=1.0)
    return b.graph(out, "against itself")


@pytest.mark.parametrize(
    "graph, options, wrong",
    [
        (against_itself(), {}, "rows of the batch meet"),
        (mlp(64, (32, 32)), {"micro_batches": 3}, "does not divide"),
        (mlp(64, (32, 32)), {"micro_batches": 1}, "do not divide 1"),
        (mlp(63, (32, 32)), {}, "do not divide"),
        (mlp(64, (32, 32)), {"stages": 2}, "the schedule says"),
        (mlp(64, (32, 32)), {"overlap": False}, "overlap=True"),
        (mlp(64, (32, 32)), {"in_flight": 3}, "must be 1 or 2"),
    ],
)
def test_two_in_flight_are_refused_with_the_reason(graph: Graph, options: Any, wrong: str):
    asked = {"overlap": True, "in_flight": 2, "baselines": False, **options}
    with pytest.raises(ValueError, match=wrong):
        find_plan(graph, cluster("laptop", 2, 2), PlanOptions(**asked))
