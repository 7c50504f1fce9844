"""What is drawn of a plan: blocks, memory over a step and the timeline follow from its figures."""

import math
from collections import Counter

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.report import drawing as module
from autoddl.plans.report.drawing import drawing
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.example import BOTH, PLAN, SERIAL, STAGED


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_blocks_cover_each_tensor_as_often_as_there_are_copies(plan):
    drawn = drawing(plan)
    assert [len(part["layers"]) for part in drawn["parts"]] == [len(s.layers) for s in plan.stages]
    for layout in drawn["layouts"]:
        areas = [(bottom - top) * (right - left) for top, bottom, left, right, *_ in
                 layout["blocks"]]  # fmt: skip
        assert sum(areas) == pytest.approx(layout["copies"] * layout["summands"], rel=1e-3)
        counts = Counter(number for *_, number in layout["blocks"])
        assert set(counts.values()) == {layout["copies"]}


@pytest.mark.parametrize("most", [400, 7])
def test_memory_over_a_step_has_its_fullest_moment(most, monkeypatch):
    monkeypatch.setattr(module, "MOST_MOMENTS", most)
    (part,) = drawing(PLAN)["parts"]
    course, peak = part["course"], stage_figures(PLAN.stage).memory_peak("executor")
    sums = [sum(held) for held in zip(*course["bytes"], strict=True)]
    assert len(sums) == len(course["moments"]) <= most and 0 < course["turn"] < len(sums)
    assert max(sums) == sums[course["fullest"]] == peak.bytes
    assert course["moments"][course["fullest"]] == peak.moment
    assert course["ticks"][0][0] == 0 and course["ticks"][-1][0] <= course["top_bytes"]
    assert course["limit_bytes"] == PLAN.memory_limit_bytes > course["top_bytes"] >= peak.bytes
    assert course["text"].endswith("far above this picture")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_the_timeline_has_all_that_the_stages_do(schedule):
    options = PlanOptions(stages=2, micro_batches=4, baselines=False)
    found = find_plan(mlp(4096, (32, 64, 64, 64, 32)), cluster("laptop", 2, 2), options)
    plan = found.under(schedule)
    drawn, timeline = drawing(plan)["timeline"], figures(plan).timeline
    assert max(end for *_, end, _, _ in drawn["bars"]) == timeline.iteration_s == drawn["seconds"]
    busy = [
        sum(end - start for at, travels, _, start, end, *_ in drawn["bars"]
            if at == stage and not travels)
        for stage in range(2)
    ]  # fmt: skip
    assert busy == pytest.approx(timeline.busy_s)
    assert {bar[2] for bar in drawn["bars"]} >= {"compute", "B", "inter", "intra"}
    assert ("W" in {bar[2] for bar in drawn["bars"]}) == (schedule == "zb-h1")
    beside = drawn["text"].endswith("a stage exchanges once a step begins beside its last pass")
    hidden = any(stage_figures(stage).cost.hidden_s for stage in plan.stages)
    assert beside == hidden


def test_one_mesh_has_no_timeline_and_no_limit_is_not_drawn():
    assert drawing(SERIAL)["timeline"] is None and drawing(STAGED)["timeline"]
    assert drawing(PLAN)["timeline"], "what overlaps is seen on one"
    course = drawing(PLAN.changed(memory_limit_bytes=math.inf))["parts"][0]["course"]
    assert course["limit_bytes"] is None
