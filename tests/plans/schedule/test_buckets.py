"""Buckets by dynamic programming end a step as early as the best of all choices."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from autoddl.cluster.spec import Cluster
from autoddl.cost.exchange import Buckets
from autoddl.graph.graph import Graph
from autoddl.planner.asked import cost_model
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.planner.tables.tables import build_tables
from autoddl.plans.figures import figures
from autoddl.plans.schedule.buckets import best_buckets, earliest_runs
from autoddl.plans.stage_figures import stage_figures
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


CASES = [
    (mlp(rows, widths), cluster(*where))
    for where in (("laptop", 2, 1), ("piz_daint", 2, 1), ("gcp_a100", 1, 2))
    for rows, widths in ((64, (512, 512)), (4096, (256, 512)), (1024, (512, 1024, 512)))
]


@pytest.mark.parametrize(("graph", "machine"), CASES)
def test_the_bound_is_below_all_overlapped_steps_and_the_plan_the_best(
    graph: Graph, machine: Cluster
):
    options = PlanOptions(overlap=True, micro_batches=1, baselines=False)
    stage = find_plan(graph, machine, options).stage
    tables = build_tables(graph.with_forks(), cost_model(machine, options))
    assert tables is not None
    paths = PathTable(machine.mesh, tables.model.comm.price)
    every = list(itertools.product(*map(range, tables.problem.sizes())))
    rng, best_s = np.random.default_rng(0), math.inf
    for number in rng.permutation(len(every))[:150]:  # all of one layer
        choice = np.array(every[number])
        cost, memory = tables.problem.evaluate(choice)
        if math.isfinite(cost):
            result = SearchResult(choice, cost, memory, 1, "any")
            best_s = min(best_s, Candidate(tables, result, paths).step_s)
    bound = stage.search.lower_bound_s
    assert bound is not None and bound <= best_s * (1 + 1e-6)
    assert stage_figures(stage).cost.iteration_s <= best_s * 1.01
