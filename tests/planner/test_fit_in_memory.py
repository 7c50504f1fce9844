"""What becomes of a search whose best choice does not fit at its fullest moment."""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.planner import fit_in_memory
from autoddl.planner.fit_in_memory import FittedSearch
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.planner.tables.group_table import WHOLE_SPACE
from autoddl.planner.tables.groups import make_groups
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import TableBuilder
from autoddl.search.algorithms import find_algorithm
from autoddl.search.budget import Budget
from autoddl.search.problem import Problem, SearchResult
from tests.clusters import cluster
from tests.graphs import mlp

PROBLEM = Problem((np.arange(1.0, 6.0),), (np.zeros(5),), (), (), (0,), ())  # cost: strategy + 1


@dataclass
class Fits:
    """In place of `Candidate`: only these strategies fit at their fullest moment."""

    tables: Any
    result: SearchResult
    paths: None
    strategies = frozenset({2, 4})

    @property
    def seconds(self) -> float:
        return self.result.cost

    @property
    def excess_bytes(self) -> float:
        return 0.0 if int(self.result.choice[0]) in self.strategies else 1.0

    def knowing(self, other):
        return self


def result(strategy: int, *earlier: int) -> SearchResult:
    best, *before = (np.array([s]) for s in (strategy, *earlier))
    return SearchResult(best, strategy + 1.0, 0.0, 1, "some", 0.5, earlier=tuple(before))


@pytest.mark.parametrize(
    ("first", "lowered", "cost"),
    [
        (result(2, 4), None, 3.0),  # fits
        (result(0, 1, 2), 4, 3.0),  # found before, and better than within a lower limit
        (result(0, 4), 2, 3.0),  # found before, but worse
        (result(0, 1, 2), None, 3.0),  # nothing within a lower limit
        (result(0, 1, 3), None, None),  # nothing fits
    ],
)
def test_what_was_found_before_is_used_if_it_fits_and_is_better(monkeypatch, first, lowered, cost):
    monkeypatch.setattr(fit_in_memory, "Candidate", Fits)
    monkeypatch.setattr(fit_in_memory, "_QUICK", 0)
    estimator: Any = SimpleNamespace(
        prices=SimpleNamespace(paths=None), model=SimpleNamespace(limit_bytes=1.0)
    )
    tables: Any = SimpleNamespace(problem=PROBLEM)
    algorithm: Any = None
    several = FittedSearch(estimator, algorithm, Budget(), 0)
    fitting = several._fitting(
        (tables, first), lambda *_: None if lowered is None else (tables, result(lowered))
    )
    assert (None if fitting is None else fitting.seconds) == cost
    assert fitting is None or fitting.result.lower_bound == 0.5
    assert fitting is None or fitting.result.end == ("done" if cost == first.cost else "memory")


def test_a_choice_within_a_lower_limit_that_is_near_the_bound_is_the_end_of_the_search():
    estimator, algorithm = (cast(Any, None),) * 2
    first = dataclasses.replace(result(2), lower_bound=3.0)
    for gap, end in ((0.1, "memory"), (0.4, "done")):
        search = FittedSearch(estimator, algorithm, Budget(gap=gap), 0)
        bounded = search._bounded(result(3), first)
        assert (bounded.lower_bound, bounded.end) == (3.0, end)
    stopped = dataclasses.replace(result(3), end="budget")
    assert FittedSearch(estimator, algorithm, Budget(), 0)._bounded(stopped, first).end == "budget"


@pytest.mark.parametrize(("most_slack", "cost"), [(np.inf, 1.5), (0.01, 2.0)])
def test_strategies_far_above_the_least_bound_are_left_out_where_no_proof_is_wanted(
    most_slack, cost
):
    """The second strategy is the best, though the first one's bound is lower."""
    bounds, costs = np.array([1.0, 1.2, 1.6]), np.array([2.0, 1.5, 1.7])

    def tables(kept, prices):
        return SimpleNamespace(problem=dataclasses.replace(PROBLEM, node_cost=(costs[kept[0]],),
                               node_memory=(np.zeros(len(kept[0])),)))  # fmt: skip

    few: Any = SimpleNamespace(
        bound=1.0, size=3, limit_bytes=np.inf, tables=tables, ceiling=lambda slack: 1 + slack,
        kept=lambda slack: [np.flatnonzero(bounds <= 1 + slack)],
    )  # fmt: skip
    estimator: Any = SimpleNamespace(prices=None, model=SimpleNamespace(limit_bytes=np.inf))
    algorithm = find_algorithm("auto")
    search = FittedSearch(estimator, algorithm, Budget(), 0, most_slack=most_slack)
    found = search._search_few(few, np.inf)
    assert found is not None
    assert found[1].cost == cost
    assert found[1].lower_bound <= 1.5


def test_what_is_known_of_a_choice_is_known_with_another_bound():
    tables: Any = SimpleNamespace()
    other_tables: Any = SimpleNamespace()
    paths: Any = None
    known = Candidate(tables, result(2), paths)
    known.__dict__["excess_bytes"] = 7.0  # as if it had been worked out
    bounded = dataclasses.replace(result(2), lower_bound=1.0)
    assert Candidate(tables, bounded, paths).knowing(known).excess_bytes == 7.0
    others = Candidate(tables, result(3), paths), Candidate(other_tables, result(2), paths)
    assert all("excess_bytes" not in vars(other.knowing(known)) for other in others)


def test_the_same_plan_in_tables_of_other_strategies_is_known():
    model, graph = CostModel(cluster("gcp_a100", 2, 2)), mlp(32, (512, 2048, 96))
    prices = PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)
    grouping, again = make_groups(graph), Recomputation(graph)
    builder = TableBuilder(grouping, model, 1, WHOLE_SPACE, prices, again)
    builder.prepare()
    counts = [len(table.assign) for table in builder.group_tables]
    every, rest = (
        builder.among([np.arange(min(first, count - 1), count) for count in counts], prices).build()
        for first in (0, 1)
    )
    choice = np.array([size - 1 for size in every.problem.sizes()])
    same = np.array([size - 1 for size in rest.problem.sizes()])
    cost = every.problem.evaluate(choice)[0]
    assert (same != choice).any() and rest.problem.evaluate(same)[0] == pytest.approx(cost)
    known = Candidate(every, SearchResult(choice, cost, 0.0, 1, "some", 0.5), prices.paths)
    assert known.placed[0]
    vars(known)["excess_bytes"] = 7.0
    found = Candidate(rest, SearchResult(same, cost, 0.0, 1, "some", 0.5), prices.paths)
    assert found.knowing(known).excess_bytes == 7.0
    others = [
        dataclasses.replace(found, result=dataclasses.replace(found.result, cost=2 * cost)),
        dataclasses.replace(found, tables=dataclasses.replace(rest, micro_batches=2)),
    ]
    assert all("excess_bytes" not in vars(other.knowing(known)) for other in others)


def test_a_limit_below_what_any_plan_holds_is_not_searched(monkeypatch):
    """Two of M6-MoE-1T's micro-batches do not fit 480 devices: a fifth of its planning."""
    searches = []
    search = FittedSearch.search
    monkeypatch.setattr(FittedSearch, "search", lambda *own: searches.append(own) or search(*own))
    too_large = property(lambda self: 0.999 * self.result.memory)
    monkeypatch.setattr(Candidate, "excess_bytes", too_large)
    monkeypatch.setattr(fit_in_memory, "_QUICK", 0)
    options = PlanOptions(micro_batches=1, baselines=False, overlap=False)
    with pytest.raises(ValueError, match="memory"):
        find_plan(mlp(32, (512, 2048, 96)), cluster("gcp_a100", 2, 2), options)
    assert len(searches) == 2, "by what gradients read, and by all"
