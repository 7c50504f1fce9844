"""Buckets by dynamic programming end a step as early as the best of all choices."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from autoddl.cluster.spec import Cluster
from autoddl.cost.account import Trips
from autoddl.cost.exchange import Buckets
from autoddl.cost.model import Ends, StepPrice
from autoddl.graph.graph import SOURCE_KINDS, Graph
from autoddl.planner.asked import cost_model
from autoddl.planner.estimate import StepParts, one_at_a_time
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.planner.schemes import each_baseline
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.tables import Tables, build_tables
from autoddl.plans.figures import figures
from autoddl.plans.schedule.buckets import best_buckets, earliest_runs, on_one_way
from autoddl.plans.schedule.step import StepMaker
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.collectives import Step
from autoddl.sbp.layout import TensorSpec, is_even
from autoddl.sbp.placement import NdSbp, S
from autoddl.sbp.redistribute import PathTable
from autoddl.search.problem import SearchResult
from tests.clusters import cluster
from tests.graphs import mlp, residual


@dataclass(frozen=True)
class Gradients:
    """When each is there, its (latency, further seconds), and with which it may travel."""

    ready: list[float]
    prices: list[tuple[float, float]]
    companies: list[int]

    def end_s(self, buckets: Buckets) -> float:
        end = 0.0
        for bucket in buckets:
            start = max(end, *(self.ready[n] for n in bucket))
            end = start + self.prices[bucket[0]][0] + sum(self.prices[n][1] for n in bucket)
        return end


@pytest.mark.parametrize("seed", range(40))
def test_runs_end_no_later_than_any_other(seed: int):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 9))
    ready = sorted(rng.uniform(0, 1, count).tolist())
    latency = float(rng.uniform(0, 0.4))
    prices = [(latency, float(s)) for s in rng.uniform(0, 0.3, count)]
    found = Gradients(ready, prices, [0] * count)
    best = min(
        found.end_s(runs)
        for cuts in itertools.product((False, True), repeat=count - 1)
        for runs in [_cut(cuts, count)]
    )
    runs = earliest_runs(range(count), ready, prices, found.companies)
    assert sorted(n for run in runs for n in run) == list(range(count))
    assert found.end_s(runs) <= best * (1 + 1.1e-3)


def _cut(cuts: tuple[bool, ...], count: int) -> Buckets:
    edges = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), count]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(edges))


def test_gradients_that_may_not_travel_together_do_not():
    runs = earliest_runs(range(4), [0.0] * 4, [(1.0, 0.1)] * 4, ["a", "b", "a", "b"])
    assert runs == ((0, 2), (1, 3))


def test_an_overlapped_plan_is_priced_with_what_it_hides_and_so_are_its_rivals():
    graph, machine = residual(3, 4096, 256), cluster("piz_daint", 2, 2)
    serial = find_plan(graph, machine, PlanOptions(overlap=False))
    plan = find_plan(graph, machine, PlanOptions(in_flight=1))
    known = figures(plan)
    assert plan.stage.buckets == best_buckets(stage_figures(plan.stage).maker)
    assert known.cost.hidden_s > 0
    assert known.iteration_s < figures(serial).iteration_s
    before = {b.name: b.iteration_s or 0.0 for b in serial.baselines}
    after = {b.name: b.iteration_s or 0.0 for b in plan.baselines}
    assert known.iteration_s <= min(filter(None, after.values())) * (1 + 1e-6)
    assert all(after[name] <= seconds for name, seconds in before.items())
    assert any(after[name] < seconds for name, seconds in before.items())


def linked(machine: Cluster, times: float) -> Cluster:
    """With links so many times as fast, with which communication counts more or less."""
    alpha_s, beta_s = (
        one / times for one in (machine.inter.alpha_s, machine.inter.beta_s_per_byte)
    )
    inter = dataclasses.replace(machine.inter, alpha_s=alpha_s, beta_s_per_byte=beta_s)
    return dataclasses.replace(machine, inter=inter)


def in_ways(ways: Sequence[str], columns: tuple[int, ...], times: float) -> StepMaker:
    """Data parallelism on 2x2, whose gradients take these ways in turn; times: the latency."""
    graph, machine = mlp(4096, columns), cluster("laptop", 2, 2)
    inter = dataclasses.replace(machine.inter, alpha_s=machine.inter.alpha_s * times)
    machine = dataclasses.replace(machine, inter=inter)
    _, plan = next(each_baseline(graph, machine, PlanOptions(micro_batches=1, overlap=False)))
    assert plan is not None
    stage, edges = plan.stage, dict(plan.stage.edges)
    for number, one in enumerate(stage.exchanges):
        steps = tuple(map(Step.parse, ways[number % len(ways)].split("; ")))
        edges[one.key] = dataclasses.replace(edges[one.key], backward=steps)
    return stage_figures(dataclasses.replace(stage, edges=edges)).maker


DIRECT, HOSTS_FIRST = "all_reduce[0,1] P->B", "all_reduce[0] P->B; all_reduce[1] P->B"
INSIDE_FIRST = "reduce_scatter[1] P->S0; all_reduce[0] P->B; all_gather[1] S0->B"
TWICE = "reduce_scatter[1] P->S0; reduce_scatter[0] P->S1; all_gather[0] S1->B; all_gather[1] S0->B"


@pytest.mark.parametrize("times", [0.01, 1, 100])  # the latency between hosts
@pytest.mark.parametrize(
    "ways, columns, shared",
    [
        ((DIRECT, HOSTS_FIRST), (512, 256, 8), (DIRECT, HOSTS_FIRST)),
        ((HOSTS_FIRST, INSIDE_FIRST), (512, 256, 8), (HOSTS_FIRST, INSIDE_FIRST)),
        ((HOSTS_FIRST, INSIDE_FIRST, DIRECT), (512, 9, 16), (HOSTS_FIRST, DIRECT)),
        ((INSIDE_FIRST, HOSTS_FIRST, HOSTS_FIRST), (512, 7, 8), (HOSTS_FIRST,)),
        ((DIRECT,), (512, 256, 8), (DIRECT,)),
        ((TWICE, HOSTS_FIRST), (512, 256, 8), (HOSTS_FIRST,)),
    ],
    ids=["two", "split", "three of which all can take two", "odd", "one", "split twice"],
)
def test_gradients_of_one_all_reduce_take_the_way_that_is_best_for_all(
    ways, columns, shared, times
):
    """Each ends where it did; shared: the ways that all of them can take."""
    maker = in_ways(ways, columns, times)
    prices = {way: taken(maker, [way] * len(maker.exchanges)) for way in shared}
    own = [ways[n % len(ways)] for n in range(len(maker.exchanges))]
    best_s, best = min((seconds, way) for way, seconds in prices.items())
    found = on_one_way(maker)
    if best_s < taken(maker, own) and len(ways) > 1:
        assert len({one.company for one in found.exchanges}) == 1
        assert found.bucket_s(range(len(own))) == pytest.approx(best_s, rel=1e-12), best
    else:
        assert found is maker
    for one in found.exchanges:
        nd = one.given
        for step in one.steps:
            nd = step.apply(nd)
            assert is_even(one.spec.shape, nd, maker.model.cluster.mesh)
        assert nd == NdSbp.broadcast(2)


def taken(maker: StepMaker, ways: Sequence[str]) -> float:
    """Seconds where all gradients that take one of the ways travel together."""
    trips, found, latencies = Trips(maker.model), 0.0, {}
    for one, way in zip(maker.exchanges, ways, strict=True):
        steps = tuple(map(Step.parse, way.split("; ")))
        sizes = TensorSpec((one.spec.numel,), one.spec.dtype)  # as they lie in a bucket
        steps = steps if way == TWICE else tuple(map(on_first_dim, steps))
        trip = trips.along(one.spec if way == TWICE else sizes, one.given, steps)
        found += trip.seconds - trip.alpha_s
        latencies[way] = trip.alpha_s
    return found + sum(latencies.values())


def on_first_dim(step: Step) -> Step:
    source, target = (S(0) if p.is_split else p for p in (step.source, step.target))
    return dataclasses.replace(step, source=source, target=target)


LAPTOP, PIZ_DAINT = cluster("laptop", 2, 1), cluster("piz_daint", 2, 1)
MACHINES = LAPTOP, PIZ_DAINT, linked(LAPTOP, 0.03), linked(PIZ_DAINT, 30), cluster("gcp_a100", 1, 2)
SIZES = (64, (512, 512)), (4096, (256, 512)), (1024, (512, 1024, 512))
CASES = [  # in every run each machine, each model
    pytest.param(mlp(*size), machine, marks=() if n % 3 == m else pytest.mark.full)
    for n, machine in enumerate(MACHINES)
    for m, size in enumerate(SIZES)
]


def ends_of(graph: Graph) -> Ends:
    """The first gradient's exchange may only begin at the end of the backward pass."""
    ops = [op for op in graph.ops if op.kind not in SOURCE_KINDS]
    first, *_, last = (
        number
        for number, op in enumerate(ops)
        if any(graph.producers[tensor].kind == "param" for tensor in op.inputs)
    )
    names = [op.name for op in ops]
    return Ends(frozenset(names[last:]), frozenset(names[: first + 1]), frozenset(names[:first]))


@pytest.mark.parametrize(("graph", "machine"), CASES)
def test_what_a_choice_costs_at_a_price_is_no_more_than_its_step(graph: Graph, machine: Cluster):
    """So the least cost at a price is a bound; and no choice is clearly better than the plan."""
    options = PlanOptions(micro_batches=1, in_flight=1, baselines=False)
    model = cost_model(graph, machine, options)

    def tables_at(price: StepPrice | None, zero: bool = False) -> Tables:
        own = dataclasses.replace(model, price=price)
        tables = build_tables(graph.with_forks(), own, space=Space(zero=zero))
        assert tables is not None
        return tables

    ends = ends_of(graph)
    prices = one_at_a_time(ends)
    whole, priced = tables_at(None), [tables_at(price).problem for price in prices[::5]]
    paths = PathTable(machine.mesh, model.comm.price, model.comm.collectives)
    rng, best_s = np.random.default_rng(0), math.inf
    for tables in (whole, tables_at(None, zero=True)):
        for _ in range(60):
            choice = rng.integers(tables.problem.sizes())
            cost, memory = tables.problem.evaluate(choice)
            if not math.isfinite(cost):
                continue
            found = Candidate(tables, SearchResult(choice, cost, memory, 1, "any"), paths)
            best_s, most_s = min(best_s, found.step_s), found.step_s * (1 + 1e-6)
            parts = StepParts.of(found.maker, 1, ends)
            assert max(map(parts.at, prices)) <= most_s
            if tables is whole:
                assert max(problem.evaluate(choice)[0] for problem in priced) <= most_s
    assert stage_figures(find_plan(graph, machine, options).stage).cost.iteration_s <= best_s * 1.01
