"""A budget of seconds: some plan that fits comes first, then better ones as long as it lasts."""

import cProfile
import logging
from dataclasses import replace

import pytest

from autoddl.cost.liveness import StepTape
from autoddl.graph.cut import cut_graph
from autoddl.planner.asked import cost_model, prepared, stage_counts
from autoddl.planner.fit_in_memory import FittedSearch
from autoddl.planner.mesh import plan_mesh
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.stages.choice import Ranking
from autoddl.planner.stages.in_stages import MOST_LAYERS
from autoddl.planner.stages.stage_prices import StagePrices
from autoddl.planner.tables.group_table import GroupTables
from autoddl.planner.tables.strategies import DEFAULT_CAP
from autoddl.plans.figures import figures
from autoddl.plans.plan import Plan
from autoddl.plans.report import report
from autoddl.plans.stage_figures import stage_figures
from autoddl.search.budget import Deadline
from tests.clusters import cluster
from tests.graphs import attention, residual

AT_ONCE = 1e-6
GRAPHS = (residual(3, 256, 256), attention(2, 32, 16, 64, 4))
MACHINE = cluster("piz_daint", 4, 1)
PLACES = (("laptop", 2, 2), ("gcp_a100", 32, 1))  # with few axes, and with classes of strategies


@pytest.mark.parametrize(
    ("graph", "where"),
    [
        pytest.param(GRAPHS[0], PLACES[0], id=GRAPHS[0].name, marks=pytest.mark.full),
        pytest.param(GRAPHS[1], PLACES[1], id=GRAPHS[1].name),
    ],
)
def test_no_time_gives_a_plan_that_fits_and_says_what_it_proves(graph, where):
    free = find_plan(graph, cluster(*where), PlanOptions(baselines=False, overlap=False))
    limit = 0.8 * figures(free).needed_bytes[0]
    asked = PlanOptions(memory_limit_bytes=limit)
    best = find_plan(graph, cluster(*where), replace(asked, baselines=False))
    plan = find_plan(graph, cluster(*where), replace(asked, budget_seconds=AT_ONCE))
    plan.verify()
    assert figures(plan).needed_bytes[0] <= limit
    ours, search = figures(plan).iteration_s, plan.stage.search
    assert ours >= figures(best).iteration_s * (1 - 1e-3)
    assert search.lower_bound_s is not None and search.lower_bound_s <= ours * (1 + 1e-6)
    assert plan.baselines == () and search.end in ("budget", "done")
    notes = report(plan, brief=True).to_json()["notes"]
    assert any("found by elimination" in note for note in notes)


def test_what_the_search_knows_of_a_steps_memory_is_not_worked_out_for_the_report(monkeypatch):
    """That took half of `autoddl plan` where the budget was over."""
    graph, where = residual(3, 256, 256), cluster("laptop", 2, 2)
    asked = PlanOptions(baselines=False, overlap=False, budget_seconds=AT_ONCE)
    limit = 0.9 * figures(find_plan(graph, where, asked)).needed_bytes[0]
    plan = find_plan(graph, where, replace(asked, memory_limit_bytes=limit))  # at its peak
    again = Plan.loads(plan.dumps())
    needed = figures(again).needed_bytes, stage_figures(again.stage).executor_peak
    monkeypatch.setattr(StepTape, "build", None)
    assert (figures(plan).needed_bytes, stage_figures(plan.stage).executor_peak) == needed
    assert figures(plan).iteration_s == figures(again).iteration_s


@pytest.mark.full
def test_time_enough_gives_the_plan_of_all_time():
    graph, where = residual(2, 256, 256), cluster("gcp_a100", 2, 2)
    limit = 0.8 * figures(find_plan(graph, where)).needed_bytes[0]
    asked = PlanOptions(memory_limit_bytes=limit)
    whole, timed = (
        find_plan(graph, where, options) for options in (asked, replace(asked, budget_seconds=1e6))
    )
    assert figures(timed).iteration_s == pytest.approx(figures(whole).iteration_s, rel=1e-3)
    assert timed.stage.search.end == "done" and timed.baselines == whole.baselines


def test_a_search_stopped_at_its_start_does_not_take_the_place_of_the_first_plan(monkeypatch):
    """EfficientNet's plan took 13 times as long where the budget ended between the two."""
    graph, where = residual(3, 256, 256), cluster("laptop", 2, 2)
    first = find_plan(graph, where, PlanOptions(budget_seconds=AT_ONCE, overlap=False))

    def left(self):
        return self.budget if self.is_rough else replace(self.budget, seconds=1e-9)

    monkeypatch.setattr(FittedSearch, "left", property(left))
    plan = find_plan(graph, where, PlanOptions(budget_seconds=1e6, overlap=False))
    assert plan.stage.search.end == "budget"
    assert figures(plan).iteration_s <= figures(first).iteration_s


def test_tables_that_are_not_done_in_time_are_given_up_where_there_is_a_plan(monkeypatch):
    """A PVT's plan within a second took 2.4 s, as the second tables were made to the end."""
    graph, where = attention(2, 32, 16, 64, 4), cluster("gcp_a100", 32, 1)
    first = find_plan(graph, where, PlanOptions(budget_seconds=AT_ONCE, baselines=False))
    made = []

    def local(self, group, of=GroupTables.local):
        made.append(self.space.cap)
        return of(self, group)

    # over from the third of the second tables on
    late = property(lambda own: made.count(DEFAULT_CAP) > 2)
    monkeypatch.setattr(GroupTables, "local", local)
    monkeypatch.setattr(FittedSearch, "is_over", late)
    plan = find_plan(graph, where, PlanOptions(budget_seconds=1e6, baselines=False))
    assert plan.stage.search.end == "budget"
    assert made.count(DEFAULT_CAP) == 3 < len(made) - 3
    assert plan.stage.ops == first.stage.ops


@pytest.mark.full  # without a limit that binds it is the next
def test_no_time_is_spent_once_there_is_a_plan():
    """Of a model in stages of many micro-batches and blocks, whose planning takes much longer."""
    graph, where = attention(3, 64, 8, 128, 8), cluster("piz_daint", 32, 1)
    limit = 0.5 * figures(find_plan(graph, where, PlanOptions(baselines=False))).needed_bytes[0]
    asked = PlanOptions(memory_limit_bytes=limit)
    _, whole = _counted(graph, where, asked)
    _, soon = _counted(graph, where, replace(asked, budget_seconds=AT_ONCE))
    assert soon < whole / 3


@pytest.mark.parametrize("stages", [pytest.param(2, marks=pytest.mark.full), "auto"])
def test_cutting_into_stages_ends_soon_once_time_is_over(stages):
    graph, counts = attention(2, 64, 8, 128, 8), []
    for seconds in (None, AT_ONCE):
        plan, calls = _counted(graph, MACHINE, PlanOptions(stages=stages, budget_seconds=seconds))
        counts.append(calls)
        plan.verify()
        assert stages == "auto" or len(plan.stages) == stages
    assert counts[1] < counts[0] / 3


def _counted(graph, where, options):
    """The plan, and how many calls of functions planning made: seconds vary under load by more."""
    profile = cProfile.Profile()
    plan = profile.runcall(find_plan, graph, where, options)
    return plan, sum(entry.callcount for entry in profile.getstats())


def test_interleaved_stages_that_were_not_searched_in_time_are_searched_all_the_same():
    """A GPT on 2x2 was refused: "layers 0-0 cannot run on 1 x 2"."""
    graph, where = attention(2, 32, 16, 64, 4), cluster("laptop", 2, 2)
    asked = PlanOptions(stages=2, schedule="interleaved-1f1b", chunks=2, budget_seconds=AT_ONCE)
    plan = find_plan(graph, where, asked)
    plan.verify()
    assert len(plan.stages) == 4


def test_stages_that_do_not_fit_in_what_was_searched_in_time_get_smaller_micro_batches():
    graph, asked = attention(2, 64, 8, 128, 8), PlanOptions(stages=2, baselines=False)
    few = find_plan(graph, MACHINE, replace(asked, micro_batches=2))
    limit = 0.6 * max(figures(few).needed_bytes)
    asked = replace(asked, memory_limit_bytes=limit, budget_seconds=AT_ONCE)
    plan = find_plan(graph, MACHINE, asked)
    assert max(figures(plan).needed_bytes) <= limit


@pytest.mark.full
def test_no_stages_are_looked_for_after_the_deadline_where_there_is_a_plan_without():
    """It took 76 s of processor time for a GPT of 6.8 billion on 64 devices, with a budget of 1."""
    graph, where, options = attention(3, 64, 8, 128, 8), cluster("gcp_a100", 4, 4), PlanOptions()
    cut = cut_graph(prepared(graph, options), MOST_LAYERS)
    asked = (
        cut,
        cost_model(graph, where, options),
        stage_counts(cut, None),
        replace(options, stages="auto"),
    )
    assert Ranking(*asked, Deadline(AT_ONCE)).partitions()
    with pytest.raises(ValueError, match="no partition into any number of stages"):
        Ranking(*asked, Deadline(AT_ONCE), gives_up=True).partitions()


def test_equal_stages_share_a_plan_once_time_is_over(monkeypatch):
    """Though the later one could keep more, as fewer micro-batches are in flight."""
    graph, where = attention(8, 64, 8, 128, 8), cluster("laptop", 4, 2)
    asked = PlanOptions(stages=4, baselines=False, micro_batches=8)
    free = find_plan(graph, where, asked)
    limit = 0.85 * max(figures(free).needed_bytes)
    planned = []

    def counted(micro, *rest, **named):
        planned.append(micro)
        return plan_mesh(micro, *rest, **named)

    monkeypatch.setattr("autoddl.planner.stages.in_stages.plan_mesh", counted)
    plan = find_plan(graph, where, replace(asked, memory_limit_bytes=limit, budget_seconds=AT_ONCE))
    plan.verify()
    assert max(figures(plan).needed_bytes) <= limit
    assert [stage.in_flight for stage in plan.stages] == [4, 3, 2, 1]
    assert figures(plan).same_as == (0, 1, 1, 3) and len(planned) == 3


@pytest.mark.parametrize("seconds", [AT_ONCE, pytest.param(1e6, marks=pytest.mark.full)])
def test_stages_priced_with_blocks_run_again_are_planned_so_first(monkeypatch, seconds):
    """Without was searched first, in vain: a third of the time of GPT-3 175B in eight stages.

    With time enough nothing was said to fit: stages were priced between two placements.
    """
    graph, where = attention(8, 64, 16, 64, 8), cluster("laptop", 4, 2)
    asked = PlanOptions(stages=2, baselines=False, micro_batches=2)
    limit = 0.35 * max(figures(find_plan(graph, where, asked)).needed_bytes)
    searched, plan_of = [], FittedSearch.plan

    def counted(self, parts, beat_s, blocks):
        searched.append(blocks)
        return plan_of(self, parts, beat_s, blocks)

    monkeypatch.setattr(FittedSearch, "plan", counted)
    plan = find_plan(graph, where, replace(asked, memory_limit_bytes=limit, budget_seconds=seconds))
    assert max(figures(plan).needed_bytes) <= limit
    assert searched[0]
    assert seconds > AT_ONCE or len(searched) == 2 and all(searched)


@pytest.mark.full
def test_a_budget_that_is_over_does_not_give_the_dearest_memory_alone():
    """Half of the memory that is best had plans that took 2.1 times as long, and 1.3 now."""
    graph, where = attention(8, 64, 8, 128, 8), cluster("laptop", 4, 2)
    asked = PlanOptions(stages=2, baselines=False, micro_batches=8, overlap=False)
    limit = 0.5 * max(figures(find_plan(graph, where, asked)).needed_bytes)
    asked = replace(asked, memory_limit_bytes=limit)
    best = find_plan(graph, where, asked)
    soon = find_plan(graph, where, replace(asked, budget_seconds=AT_ONCE))
    assert max(figures(soon).needed_bytes) <= limit
    assert figures(soon).iteration_s <= 1.5 * figures(best).iteration_s


@pytest.mark.parametrize("when", ["stages.choice", "batches"])
def test_ctrl_c_gives_the_stages_found_so_far(when):
    """Pressed once there is a first partition, or a plan of the first stage, it ends the rest."""
    pressed = []

    class CtrlC(logging.Handler):
        def emit(self, record):
            if record.name.endswith(when):
                pressed.append(record.getMessage())
                raise KeyboardInterrupt

    planner, handler = logging.getLogger("autoddl.planner"), CtrlC()
    planner.addHandler(handler)
    planner.setLevel(logging.INFO)
    try:
        plan = find_plan(attention(3, 64, 8, 128, 8), MACHINE, PlanOptions(stages=2))
    finally:
        planner.removeHandler(handler)
        planner.setLevel(logging.NOTSET)
    plan.verify()
    assert len(plan.stages) == 2 and plan.baselines == ()
    assert "best so far" in pressed[0]


def test_stages_are_placed_with_the_strategies_that_priced_them(monkeypatch):
    """Among which the plan is found of which the partition knew; a GPT's needed 5 s, now 3."""
    graph, asked = attention(3, 64, 8, 128, 8), PlanOptions(stages=2, baselines=False)
    with monkeypatch.context() as patched:
        patched.setattr(StagePrices, "few", lambda *_: None)
        among_all = find_plan(graph, MACHINE, replace(asked, budget_seconds=AT_ONCE))
    sizes: list[tuple[int, int]] = []
    soon = FittedSearch._soon

    def counted(self, builder, strategies, beat_s):
        found = soon(self, builder, strategies, beat_s)
        assert found is not None
        every = sum(len(table.assign) for table in builder.group_tables)
        sizes.append((sum(map(len, strategies(builder))), every))
        assert found.result.lower_bound <= found.seconds
        return found

    monkeypatch.setattr(FittedSearch, "_soon", counted)
    plan = find_plan(graph, MACHINE, replace(asked, budget_seconds=AT_ONCE))
    plan.verify()
    assert sizes and all(kept < every / 2 for kept, every in sizes)
    assert figures(plan).iteration_s <= 1.02 * figures(among_all).iteration_s
