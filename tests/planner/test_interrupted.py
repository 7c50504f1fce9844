"""Ctrl-C is pressed once, and ends all that would follow, with the best plan so far."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from autoddl.cluster.spec import HostGroup
from autoddl.planner import mesh, planner
from autoddl.planner.asked import cost_model, prepared
from autoddl.planner.baselines.pricing import BaselinePricer
from autoddl.planner.fit_in_memory import FittedSearch
from autoddl.planner.mesh import MeshPlan
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.stages import in_stages
from autoddl.planner.stages.stage_search import StageSearch
from autoddl.search.budget import Deadline, Ended
from tests.clusters import cluster
from tests.graphs import attention, mlp

GRAPH, WHERE = attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1)
ALONE = PlanOptions(baselines=False, micro_batches=2)


def ended_by_ctrl_c(monkeypatch) -> list[int]:
    """Every search keeps what it found when Ctrl-C was pressed in it; the numbers of searches."""
    searches: list[int] = []
    whole = FittedSearch.search

    def search(self, *given):
        searches.append(len(searches))
        found = whole(self, *given)
        if found is None:
            return None
        self.results[-1] = replace(found, end="interrupted")
        return self.results[-1]

    monkeypatch.setattr(FittedSearch, "search", search)
    return searches


def counted(monkeypatch, module, name: str, press: Callable[[int], None] = lambda _: None) -> list:
    """What a function of a module gave; `press` is told how much that was before each call."""
    found: list = []
    whole = getattr(module, name)

    def call(*given, **options):
        press(len(found))
        found.append(whole(*given, **options))
        return found[-1]

    monkeypatch.setattr(module, name, call)
    return found


def test_before_a_stage_has_a_plan_it_gives_some_plan_of_all_stages(monkeypatch):
    """There was none."""
    pressed: list[int] = []

    def press(number: int) -> None:
        if not pressed:
            pressed.append(number)
            raise KeyboardInterrupt

    counted(monkeypatch, in_stages, "plan_mesh", press)
    plan = find_plan(GRAPH, WHERE, replace(ALONE, stages=2))
    plan.verify()
    assert pressed == [0] and plan.num_stages == 2 and plan.was_interrupted


def test_in_a_stage_it_leaves_the_others_where_there_is_another_plan(monkeypatch):
    """They were planned all the same, for half a minute."""
    ended_by_ctrl_c(monkeypatch)
    stages: list[MeshPlan] = counted(monkeypatch, in_stages, "plan_mesh")
    options, deadline = replace(ALONE, stages=2), Deadline.after(None)
    model, graph = cost_model(GRAPH, WHERE, options), prepared(GRAPH, options)
    with pytest.raises(Ended):
        in_stages.plan_in_stages(graph, model, options, deadline, gives_up=True)
    assert len(stages) == 1 and deadline.was_ended


def test_it_ends_the_pricing_of_known_schemes(monkeypatch):
    """A scheme whose search was ended by it was priced as if it had not, and then the others."""
    priced: list[str] = []
    best = BaselinePricer._best

    def slow(self, family, tried):
        priced.append(family.name)
        if len(priced) == 2:
            ended_by_ctrl_c(monkeypatch)
        return best(self, family, tried)

    monkeypatch.setattr(BaselinePricer, "_best", slow)
    plan = find_plan(GRAPH, WHERE, PlanOptions(micro_batches=2))
    plan.verify()
    assert len(priced) == 2 and plan.baselines == () and plan.was_interrupted


@pytest.mark.parametrize("number", [1, 2])
def test_it_ends_the_search_for_shares(monkeypatch, number):
    """Plans at all the other shares were looked for."""
    device = cluster("laptop", 2, 1).device
    slow = replace(device, flops_per_s={d: r / 3 for d, r in device.flops_per_s.items()})
    groups = HostGroup("fast", 1), HostGroup("slow", 1, slow)

    class CtrlC(logging.Handler):
        def emit(self, record):
            if len(plans) == number - 1:
                raise KeyboardInterrupt

    plans = counted(monkeypatch, planner, "_on_one_mesh")
    logger, handler = logging.getLogger("autoddl.planner.batches"), CtrlC()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        plan = find_plan(
            mlp(480, (256, 512, 256)), replace(cluster("laptop", 2, 1), groups=groups), ALONE
        )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    plan.verify()
    assert len(plans) == number and plan.was_interrupted


def test_in_the_search_without_hints_it_leaves_no_time_for_that_with_them(monkeypatch):
    """Which had all the time that it wanted."""
    budgets: list[float | None] = []

    def press(number: int) -> None:
        if number == 0:
            ended_by_ctrl_c(monkeypatch)

    found: list[MeshPlan] = counted(monkeypatch, mesh, "plan_mesh", press)
    monkeypatch.setattr(mesh, "_budget", told(mesh._budget, budgets))
    hints = {"fc0": "replicate(2)", "fc1": "split(2)"}
    plan = find_plan(
        mlp(16, (32, 64, 48, 32)), cluster("laptop", 2, 2), replace(ALONE, hints=hints)
    )
    plan.verify()
    assert len(found) == 2 and plan.was_interrupted
    assert budgets[0] is None and budgets[1] is not None and 0 < budgets[1] < 1e-3


def told(budget, heard):
    """`budget`, which tells the seconds that it is of."""

    def call(options):
        heard.append(options.budget_seconds)
        return budget(options)

    return call


def test_before_there_are_stages_it_gives_those_of_what_was_searched(monkeypatch):
    """There was no plan, though what had been searched makes one."""

    def press(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    answers: list = counted(monkeypatch, StageSearch, "answers", press)
    plan = find_plan(GRAPH, WHERE, replace(ALONE, stages=2))
    plan.verify()
    assert len(answers) == 2 and plan.num_stages == 2 and plan.was_interrupted


def test_before_anything_was_searched_it_gives_nothing(monkeypatch):
    def press(number: int) -> None:
        raise KeyboardInterrupt

    counted(monkeypatch, StageSearch, "answers", press)
    with pytest.raises(KeyboardInterrupt):
        find_plan(GRAPH, WHERE, replace(ALONE, stages=4))
