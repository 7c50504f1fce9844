"""The plan's page: what it says, and what a real browser shows of it."""

import math
import re

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from autoddl.plans.stage import Split, SplitPart
from autoddl.tools.report.browser import ask, find_browser, screenshot
from autoddl.tools.report.page import by_commands, page, split_parts, view
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.plans.example import STAGED

SHOWN = pytest.mark.skipif(
    find_browser() is None, reason="looks at the page in Chromium, which is not on PATH"
)


def widths(selector: str) -> str:
    """JavaScript for the widths of the elements that `selector` names."""
    return f"[...document.querySelectorAll('{selector}')].map(e => e.getBoundingClientRect().width)"


@pytest.fixture(scope="module")
def plan():
    graph = residual(4, 128, 256)
    where = cluster("gcp_a100", 2, 4)
    free = find_plan(graph, where, PlanOptions(baselines=False))
    return find_plan(
        graph, where, PlanOptions(memory_limit_bytes=1.2 * figures(free).cost.memory_bytes)
    )


@pytest.fixture(scope="module")
def html(plan):
    return page(plan)


def test_the_page_needs_nothing_else(html):
    assert html.lstrip().startswith("<!doctype html>")
    assert not re.search(r"https?:|\bsrc=|<link|@import|url\((?!#)|fetch|import\(", html)


def item(plan, key):
    """What the template gets of a section."""
    return next(own for own in view(report(plan))["sections"] if own["id"] == key)


def test_each_stage_has_its_sections():
    text = page(STAGED)
    assert 'id="stages"' in text and "2 stages, 1f1b" in text
    for section in ("cost", "memory", "layers", "search"):
        ids = re.findall(rf'<section id="{section}-(\d)"', text)
        assert ids == ["0", "1"]


def test_names_are_escaped():
    graph = mlp(8, (16, 16))
    object.__setattr__(graph, "name", "<script>alert(1)</script>")
    assert "<script>alert" not in page(find_plan(graph, cluster("laptop", 1, 2)))


def test_commands_in_a_sentence_stand_apart():
    told = "a < b; 'autoddl explain --suggest' and `autoddl calibrate` tell 'more'"
    pieces = ["a < b; ", "autoddl explain --suggest", " and ", "autoddl calibrate", " tell 'more'"]
    assert by_commands(told) == pieces
    alike = find_plan(mlp(8, (16, 16)), cluster("laptop", 2, 2))
    assert "<code>autoddl explain --suggest</code>" in page(alike)


def test_parts_of_the_time_add_up(plan):
    parts = item(plan, "time")["bar"]
    assert sum(part.percent for part in parts) == pytest.approx(100, abs=0.01)
    compute = next(part for part in parts if part.name == "computation")
    cost = figures(plan).cost
    serial_s = cost.compute_s + cost.communication_s
    assert compute.percent == pytest.approx(100 * cost.compute_s / serial_s, abs=1e-3)


def test_parts_of_a_step_that_overlaps_have_room_on_one_bar():
    options = PlanOptions(overlap=True, in_flight=2, baselines=False)
    plan = find_plan(residual(2, 512, 64), cluster("laptop", 2, 2), options)
    parts = {part.name: part.percent for part in item(plan, "time")["bar"]}
    cost = figures(plan).cost
    serial_s = cost.compute_s + cost.communication_s
    assert cost.hidden_s > 0 and min(parts.values()) == 0.0
    assert sum(parts.values()) == pytest.approx(100, abs=0.01)
    assert parts["computation"] == pytest.approx(100 * cost.compute_s / serial_s, abs=1e-3)


def test_widths_of_splits_are_logarithms_of_devices():
    split = Split((SplitPart("batch", 4, 4), SplitPart("out", 8, 8), SplitPart("in", 2)))
    parts = split_parts(split)
    assert [p["text"] for p in parts] == ["batch 4", "out 8", "in 2"]
    assert [p["percent"] for p in parts] == pytest.approx(
        [100 * n / 6 for n in (2, 3, 1)], abs=0.01
    )
    assert split_parts(Split()) == []


def test_redistributions_are_named_with_their_bytes(plan, html):
    rows = item(plan, "layers")["rows"]
    moves = [move for row in rows for move in row.values["moves"]]
    edges = plan.stage.edges.values()
    steps = [s for e in edges for s in (*e.forward, *e.backward) if not s.is_free]
    assert steps and any(step.kind.replace("_", "-") in html for step in steps)
    often = r"(, in a bucket of \d+)?(, \d+ times a step)?$"
    each = re.compile(r"over .*, [\d.]+ \w?B a device in [\d.]+ \w?s" + often)
    assert moves and all(map(each.search, moves))


@SHOWN
@pytest.mark.parametrize("width", [1120, 520])
def test_a_browser_draws_bars_as_wide_as_their_values(plan, html, width):
    questions = {
        "time": widths("#time .bar span"),
        "schemes": widths("#schemes .bar span"),
        "layers": widths("#layers .layer .bar span"),
        "memory": widths("#memory .bar span"),
        "whole": "document.querySelector('#memory .bar').clientWidth",
        "page": "document.documentElement.scrollWidth",
        "window": "innerWidth",
    }
    pairs = ", ".join(f"{key}: {value}" for key, value in questions.items())
    shown = ask(html, f"({{{pairs}}})", width)
    assert shown["page"] <= shown["window"], "the page is wider than the window"
    check(shown["time"], [part.percent for part in item(plan, "time")["bar"]])
    for key in ("schemes", "layers"):
        bars = item(plan, key)["row_bars"]
        check(shown[key], [part.percent for bar in bars for part in bar])
    need = max(figures(plan).needed_bytes) / plan.memory_limit_bytes
    assert sum(shown["memory"]) == pytest.approx(need * shown["whole"], rel=0.02)


def check(drawn, values):
    """The widths are proportional to the values, within the width of a pixel."""
    assert len(drawn) == len(values) and sum(values) > 0
    scale = sum(drawn) / sum(values)
    for width, value in zip(drawn, values, strict=True):
        assert math.isclose(width, scale * value, abs_tol=1.1), (drawn, values)


@SHOWN
def test_a_picture_shows_the_whole_page(html, tmp_path):
    file = tmp_path / "plan.png"
    screenshot(html, file)
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width == 1120 and height >= ask(html, "document.body.scrollHeight") - 2


def test_without_a_browser_the_picture_is_refused(html, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="chromium"):
        screenshot(html, tmp_path / "plan.png")
