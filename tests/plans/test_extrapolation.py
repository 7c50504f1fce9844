"""Steps outside what was measured are marked in the plan."""

import dataclasses
import json

import pytest

from autoddl import explain
from autoddl.cluster.link import Calibration, Range
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.extrapolation import extrapolated_steps
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from tests.clusters import cluster
from tests.graphs import residual

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def measured(ranges):
    return Calibration("2026-01-01T00:00:00+00:00", 1, 0.95, {}, 1.0, {}, (), tuple(ranges))


def ranges(nodes: int, gpus: int, max_bytes: int) -> list[Range]:
    shapes = [(1, gpus, 1), (nodes, 1, gpus), (nodes, gpus, 1)]
    return [Range(kind, *shape, 1024, max_bytes) for kind in KINDS for shape in shapes]


def plan(calibration):
    where = dataclasses.replace(cluster("piz_daint", 2, 2), calibration=calibration)
    return find_plan(residual(2, 512, 1024), where, PlanOptions(seed=5))


def test_without_a_calibration_nothing_is_marked():
    found = plan(None)
    assert extrapolated_steps(found.stage) == () and "extrapolated" not in explain(found)


def test_a_plan_inside_the_measured_range_is_not_marked():
    assert extrapolated_steps(plan(measured(ranges(2, 2, 1 << 30))).stage) == ()


def test_large_messages_are_marked_in_words_and_json():
    found = plan(measured(ranges(2, 2, 1 << 12)))
    assert figures(found).cost.communication_s > 0
    marks = extrapolated_steps(found.stage)
    assert marks and all(m.bytes > 4 << 12 and m.count > 0 for m in marks)
    assert f"extrapolated: {sum(m.count for m in marks)} redistribution steps" in explain(found)
    summary = json.loads(json.dumps(report(found).to_json()))
    assert summary["extrapolated"][0]["bytes"] == marks[0].bytes


@pytest.mark.parametrize(
    ("shape", "size", "covered"),
    [
        ((2, 2, 1), 1 << 20, True),
        ((2, 2, 1), 4 << 20, True),
        ((2, 2, 1), 5 << 20, False),
        ((2, 2, 1), 4, True),
        ((4, 2, 1), 1 << 20, True),
        ((8, 2, 1), 1 << 20, False),
        ((2, 8, 1), 1 << 20, False),
        ((2, 1, 4), 1 << 20, True),
        ((2, 1, 8), 1 << 20, False),
        ((1, 4, 1), 1 << 20, True),
    ],
)
def test_near_and_far(shape: tuple[int, int, int], size, covered):
    assert measured(ranges(2, 2, 1 << 20)).covers("all_reduce", *shape, size) == covered


def test_another_collective_or_link_does_not_cover():
    only = measured([Range("all_gather", 1, 4, 1, 1024, 1 << 20)])
    assert only.covers("all_gather", 1, 4, 1, 1 << 20)
    assert not only.covers("all_reduce", 1, 4, 1, 1 << 20)
    assert not only.covers("all_gather", 4, 1, 1, 1 << 20)
