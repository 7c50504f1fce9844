"""What is shown of the layers adds up to what is shown of the whole plan."""

import dataclasses
import re

import pytest

from autoddl import explain
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.explain import layer_texts
from autoddl.plans.figures import figures
from autoddl.plans.format import LayerText, format_bytes, format_seconds, layer_rows
from autoddl.plans.stage_figures import stage_figures
from autoddl.tools.report.page import page, view
from autoddl.tools.report.tables import print_plan
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual
from tests.plans.example import STAGED

UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}  # fmt: skip
NUMBER = r"[\d.]+(?:e\+\d+)? [a-zA-Z]+"
PLANS = {
    # layers of one pattern and one topology whose costs differ
    "unlike layers": find_plan(mlp(32, (64, 128, 256, 32, 16)), cluster("laptop", 2, 2)),
    "alone": find_plan(mlp(8, (16, 64, 32, 256)), cluster("laptop", 1, 1)),
    "alike layers": find_plan(residual(4, 128, 256), cluster("gcp_a100", 2, 4)),
    "attention": find_plan(attention(3, 8, 16, 32, 4), cluster("piz_daint", 4, 1)),
}


def value(text):
    """`1.5 ms` -> 0.0015."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def check(parts, whole):
    """The numbers add up to `whole`, all as printed: in three digits."""
    numbers = [value(part) for part in parts]
    assert numbers and sum(numbers) == pytest.approx(value(whole), rel=0.01), (parts, whole)


def columns(text):
    """The figures of each layer in an explanation: computation, communication, memory."""
    pattern = rf"^    ({NUMBER}) computation, ({NUMBER}) communication, ({NUMBER})(?: together)?;"
    return zip(*re.findall(pattern, text, re.MULTILINE), strict=True)


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


def test_the_columns_of_the_table(plan: Plan, capsys):
    print_plan(plan)
    # the columns are kept apart by two blanks or more
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    rows = [line[-3:] for line in lines if len(line) == 7]
    (named, *rows), (totals,) = rows, [line[1:] for line in lines if line[0] == "all layers"]
    assert named == ["comm.", "NIC", "memory"]
    cost = figures(plan).cost
    seconds, sizes = cost.communication_s, (cost.nic_bytes.total, cost.memory_bytes)
    assert totals == [format_seconds(seconds), *map(format_bytes, sizes)]
    for column, whole in zip(zip(*rows, strict=True), totals, strict=True):
        check(column, whole)


def test_the_layers_of_an_explanation(plan: Plan):
    cost = figures(plan).cost
    totals = (
        format_seconds(cost.compute_s), format_seconds(cost.communication_s),
        format_bytes(cost.memory_bytes),
    )  # fmt: skip
    for column, whole in zip(columns(explain(plan)), totals, strict=True):
        check(column, whole)


def test_the_layers_of_the_page(plan: Plan):
    layers, cost = view(plan)["stages"][0]["layers"], figures(plan).cost
    check([layer["time"] for layer in layers], format_seconds(cost.iteration_s))
    check([layer["memory"] for layer in layers], format_bytes(cost.memory_bytes))
    check([layer["nic"] for layer in layers], format_bytes(cost.nic_bytes.total))
    check([layer["intra"] for layer in layers], format_bytes(cost.intra_bytes.total))
    for layer in layers:
        check(re.findall(NUMBER, layer["times"]), layer["time"])
    section = page(plan).partition('id="layers"')[2].partition("<section")[0]
    seconds = re.findall(rf"<small>({NUMBER}): {NUMBER} computation", section)
    check(seconds, format_seconds(cost.iteration_s))


def test_the_layers_of_each_stage():
    whole = explain(STAGED)
    texts = re.split(r"^stage \d+\n", whole, flags=re.MULTILINE)[1:]
    assert len(texts) == len(STAGED.stages)
    for n, (text, stage) in enumerate(zip(texts, STAGED.stages, strict=True)):
        totals = re.search(rf"predicted {NUMBER} .*: ({NUMBER}) computation, ({NUMBER}) c", text)
        assert totals is not None
        for column, total in zip(columns(text), totals.groups(), strict=False):
            check(column, total)
        named = rf"^stage {n}:.* forward ({NUMBER}), backward ({NUMBER}), once ({NUMBER});"
        line = re.search(named, whole, re.MULTILINE)
        assert line is not None
        forward, backward, once = map(value, line.groups())
        seconds = STAGED.micro_batches * (forward + backward) + once
        assert seconds == pytest.approx(stage_figures(stage).cost.iteration_s, rel=0.01)


def test_layers_share_a_row_only_if_it_holds_for_all():
    plan = PLANS["alike layers"]
    texts = layer_texts(plan.stage)
    rows = layer_rows(texts)
    assert len(rows) < len(texts) and sum(row.count for row in rows) == len(texts)
    row = next(row for row in rows if row.count > 1)
    member = next(text for text in texts if text.layer == row.layer)
    assert row.cost.memory_bytes == pytest.approx(row.count * member.cost.memory_bytes, rel=0.01)
    held = dataclasses.replace(member.cost.held, memory_bytes=1.1 * member.cost.memory_bytes)
    for other in (
        LayerText(member.layer, dataclasses.replace(member.cost, compute_s=1.0), member.storage),
        LayerText(member.layer, dataclasses.replace(member.cost, held=held), member.storage),
        LayerText(
            dataclasses.replace(member.layer, alternative_extra_s=1.0), member.cost, member.storage
        ),
        LayerText(member.layer, member.cost, "stored otherwise"),
    ):
        assert [row.count for row in layer_rows([member, other])] == [1, 1]


def test_a_row_is_named_after_what_its_layers_share():
    member = layer_texts(PLANS["alike layers"].stage)[0]
    names = ("blocks.0.fc1", "blocks.3.fc1", "blocks.3.fc2", "head")
    texts = [
        dataclasses.replace(member, layer=dataclasses.replace(member.layer, name=name))
        for name in names
    ]
    assert [row.name for row in layer_rows(texts[:2])] == ["blocks.*.fc1"]
    assert [row.name for row in layer_rows(texts)] == ["blocks.*.fc*", "head"]
