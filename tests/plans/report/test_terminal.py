"""A plan in words: what is said, that it fits the width, and one layer by itself."""

import dataclasses
import re
from collections import Counter

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import stage_figures
from autoddl.plans.figures import figures
from autoddl.plans.format import short_signature, short_topology, written
from autoddl.plans.report import explain, report
from autoddl.plans.report.sections import Column, Notation, Report, Table
from autoddl.plans.report.terminal import text
from autoddl.plans.stage import MEANINGS
from tests.clusters import cluster
from tests.graphs import attention
from tests.plans.example import BOTH, PLAN, STAGED

IN_4 = PlanOptions(stages=4, micro_batches=4)


def test_explain_names_layers_alternatives_and_steps():
    told = explain(PLAN)
    assert "block*.fc*" in told or "block0.fc1" in told
    assert "next best" in told and "NIC" in told and "Predicted" in told


def test_the_short_account_has_totals_and_the_certificate():
    told = text(report(PLAN), brief=True)
    assert "all layers" in told and "found by" in told and "needs" in told
    assert "next best" not in told and len(told) < len(explain(PLAN))


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_any_layer_is_explained_by_itself(plan):
    name = plan.layers[-1].name
    layer = explain(plan, name)
    assert layer.startswith(name) and "NIC" in layer
    with pytest.raises(ValueError, match=plan.layers[0].name):
        explain(plan, "nothing")


def test_a_layer_shows_what_moves_into_it():
    moved = [layer for layer in PLAN.layers if figures(PLAN).layer_cost(layer).communication_s > 0]
    words = r"(whole|(batch|dim\d|summands) \d.*)"
    ends: dict[Notation, str] = {"words": f"{words} -> {words}", "sbp": r"\(.*\) -> \(.*\)"}
    for notation, pattern in ends.items():
        line = rf"^(forward|backward), .*: {pattern} by [a-z-]+ over .* [kM]?B a device"
        told = [explain(PLAN, m.name, notation=notation) for m in moved]
        assert told and all(re.search(line, text, re.MULTILINE) for text in told)


def test_words_are_explained_below_their_table_and_labels_below_theirs():
    told = explain(PLAN)
    words = {part.word for layer in PLAN.layers for part in layer.split.parts}
    assert all(f"{word}: {MEANINGS[word]}" in told for word in words)
    assert not any(f"{word}: {MEANINGS[word]}" in told for word in MEANINGS.keys() - words)
    assert "S0" not in told and "topology" not in told
    labels = explain(PLAN, notation="sbp")
    assert "topology: S0 rows" in labels and "S0*2" in labels and "batch 2" not in labels
    with pytest.raises(ValueError, match="words, sbp"):
        explain(PLAN, notation="letters")  # type: ignore[arg-type]


def test_a_pipeline_is_explained_before_its_stages():
    told = explain(STAGED)
    assert "2 stages, 1f1b" in told and "bubble" in told and "in flight" in told
    assert re.search(r"^ +0 +0-\d+ +host", told, re.MULTILINE)
    assert "0 -> 1" in told and "at least" in told
    assert told.index("0 -> 1") < told.index("\nstage 0") < told.index("\nstage 1")


def test_stages_with_one_plan_are_explained_once():
    plan = find_plan(attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1), IN_4)
    assert figures(plan).same_as[:2] == (0, 1) and set(figures(plan).same_as[2:]) & {0, 1, 2} == {1}
    assert explain(plan).count(": the plan of stage 1") == figures(plan).same_as[2:].count(1)


def test_the_short_account_works_out_no_more_than_it_shows(monkeypatch):
    plan = find_plan(attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1), IN_4)
    priced: list[int] = []
    account = stage_figures.account
    monkeypatch.setattr(
        stage_figures,
        "account",
        lambda graph, *a: (priced.append(id(graph)), account(graph, *a))[1],
    )
    same, whole = figures(plan).same_as, text(report(plan), brief=True)
    assert text(report(plan, brief=True), brief=True) == whole
    own = dataclasses.replace(plan, stages=tuple(map(dataclasses.replace, plan.stages)))
    priced.clear()
    report(own, brief=True)
    each = 3  # its costs, and of one micro-batch and two what they take
    assert Counter(priced) == {id(own.stages[n].graph): each for n in same}


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_nothing_is_wider_than_the_terminal_and_nothing_is_left_out(plan, width):
    told = explain(plan, width=width)
    assert max(map(len, told.splitlines())) <= width
    shown = tables(report(plan).in_notation("words"))
    for column in (c for t in shown for c in t.columns if c.unit != "lines"):
        assert column.title in told or not any(column.key in row for row in column_rows(plan))


def tables(shown: Report) -> list[Table]:
    return [section for _, section in shown.all_sections() if isinstance(section, Table)]


def column_rows(plan):
    """Rows with the values that are not empty."""
    return [
        {key for key, value in row.items() if value not in (None, "")}
        for table in tables(report(plan))
        for row in table.rows
    ]


def test_the_width_follows_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, explain(PLAN).splitlines())) <= 60
    monkeypatch.setenv("COLUMNS", "100")
    assert 60 < max(map(len, explain(PLAN).splitlines())) <= 100


def test_a_table_that_is_cut_repeats_its_first_column():
    columns = (Column("name", "what"), *(Column(f"s{n}", f"time {n}", "seconds") for n in range(8)))
    rows = tuple({"name": name, **{f"s{n}": float(n) for n in range(8)}} for name in ("ab", "cd"))
    told = text(Report("t", "", (Table("t", "T", columns, rows, total="sum"),)), width=40)
    assert told.count("ab ") == told.count("cd ") == told.count("what ") >= 2
    assert all(f"time {n}" in told for n in range(8))


def test_a_table_below_another_has_only_rows_with_something_to_read():
    columns = (
        Column("name", "what"),
        Column("split", "split"),
        Column("s", "time", "seconds", adds=True),
        Column("more", "beside", apart=True),
        Column("moves", "moves", "lines", apart=True),
    )
    rows = (
        {"name": "a0", "split": "x" * 30, "s": 1.0, "moves": ("first",)},
        {"name": "a1", "split": "x" * 30, "s": 1.0, "moves": ("second",)},
        {"name": "b", "split": "x" * 30, "s": 2.0, "more": "told"},
    )
    shown = Report("t", "", (Table("t", "T", columns, rows, total="sum", folds=True),))
    lines = [line.split() for line in text(shown, width=42).splitlines() if line.strip()]
    assert [line[0] for line in lines if line[0] in ("a*", "a0", "b", "sum")] == [
        *("a*", "b"),  # with their splits, which have no sum
        *("a*", "b", "sum"),
        "b",  # what stands apart
    ]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "seconds", ""),
        (0.00234, "seconds", "2.34 ms"),
        (0.00234, "more_seconds", "+2.34 ms"),
        (-0.00234, "more_seconds", "-2.34 ms"),
        (0.00099996, "seconds", "1 ms"),
        (1536, "bytes", "1.54 kB"),
        (1 / 1.0000001e-9, "bytes", "1 GB"),
        (0.1234, "share", "12.3 %"),
        (5.123e-7, "share", "0.0000512 %"),
        (0.1 + 0.2 - 0.3, "share", "0 %"),
        (123.4, "share", "12340 %"),
        (1.0, "times", "1.00"),
        (True, "text", "True"),
        (("a", "b"), "lines", "a\nb"),
    ],
)
def test_values_are_written_with_their_units(value, unit, expected):
    assert written(value, unit) == expected


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("(S0:(1,1), B:(2,2), S1:(1,1))", "(B:(2,2))"),
        ("(S0:(2,1), B:(1,1), S1:(1,2), R:(1,4))", "(S0:(2,1), S1:(1,2), R:(1,4))"),
        ("(S0:(11,1), B:(1,16))", "(S0:(11,1), B:(1,16))"),
        ("(S0:(1,1), B:(1,1), S1:(1,1))", "()"),
    ],
)
def test_groups_of_one_device_are_left_out(text, short):
    assert short_topology(text) == short


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("(S0, S0, B), (B, B, S1) -> (S0, S0, S1)", "(S0*2, B), (B*2, S1) -> (S0*2, S1)"),
        ("(S0, B, S0) -> (P, P, P)", "(S0, B, S0) -> (P*3)"),
        ("(S1, S10) -> (S1, S1)", "(S1, S10) -> (S1*2)"),
        ("(B), (B) -> (B)", "(B), (B) -> (B)"),
    ],
)
def test_runs_of_equal_labels_are_counted(text, short):
    assert short_signature(text) == short
