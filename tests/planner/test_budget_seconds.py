"""A budget of seconds: some plan that fits comes first, then better ones as long as it lasts."""

import logging
import time
from dataclasses import replace

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from tests.clusters import cluster
from tests.graphs import attention, residual

AT_ONCE = 1e-6
GRAPHS = (residual(3, 256, 256), attention(2, 32, 16, 64, 4))
MACHINE = cluster("piz_daint", 4, 1)
PLACES = (("laptop", 2, 2), ("gcp_a100", 32, 1))  # with few axes, and with classes of strategies


@pytest.mark.parametrize("where", PLACES, ids=lambda w: w[0])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_no_time_gives_a_plan_that_fits_and_says_what_it_proves(graph, where):
    free = find_plan(graph, cluster(*where), PlanOptions(baselines=False))
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


def test_time_enough_gives_the_plan_of_all_time():
    graph, where = residual(2, 256, 256), cluster("gcp_a100", 2, 2)
    limit = 0.8 * figures(find_plan(graph, where)).needed_bytes[0]
    asked = PlanOptions(memory_limit_bytes=limit)
    whole, timed = (
        find_plan(graph, where, options) for options in (asked, replace(asked, budget_seconds=1e6))
    )
    assert figures(timed).iteration_s == pytest.approx(figures(whole).iteration_s, rel=1e-3)
    assert timed.stage.search.end == "done" and timed.baselines == whole.baselines


def test_no_time_is_spent_once_there_is_a_plan():
    """Of a model in stages of many micro-batches and blocks, whose planning takes much longer."""
    graph, where = attention(3, 64, 8, 128, 8), cluster("piz_daint", 32, 1)
    limit = 0.5 * figures(find_plan(graph, where, PlanOptions(baselines=False))).needed_bytes[0]
    spent = []
    for options in (PlanOptions(), PlanOptions(budget_seconds=AT_ONCE)):
        started = time.process_time()
        find_plan(graph, where, replace(options, memory_limit_bytes=limit))
        spent.append(time.process_time() - started)
    assert spent[1] < spent[0] / 3


@pytest.mark.parametrize("stages", [2, "auto"])
def test_cutting_into_stages_ends_soon_once_time_is_over(stages):
    graph, spent = attention(3, 64, 8, 128, 8), []
    for seconds in (None, AT_ONCE):
        started = time.process_time()
        plan = find_plan(graph, MACHINE, PlanOptions(stages=stages, budget_seconds=seconds))
        spent.append(time.process_time() - started)
        plan.verify()
        assert stages == "auto" or len(plan.stages) == stages
    assert spent[1] < spent[0] / 3


def test_stages_that_do_not_fit_in_what_was_searched_in_time_get_smaller_micro_batches():
    graph, asked = attention(2, 64, 8, 128, 8), PlanOptions(stages=2, baselines=False)
    few = find_plan(graph, MACHINE, replace(asked, micro_batches=2))
    limit = 0.6 * max(figures(few).needed_bytes)
    asked = replace(asked, memory_limit_bytes=limit, budget_seconds=AT_ONCE)
    plan = find_plan(graph, MACHINE, asked)
    assert max(figures(plan).needed_bytes) <= limit


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
