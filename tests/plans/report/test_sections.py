"""The sections of a plan: JSON, text and page show the same, and what is shown adds up."""

import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.format import written
from autoddl.plans.report import explain, report
from autoddl.plans.report.sections import NOTATIONS, Column, Figures, Table
from autoddl.plans.report.terminal import text
from autoddl.plans.stage_figures import stage_figures
from autoddl.tools.report.page import render
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual
from tests.plans.example import MLP, PLAN, STAGED

MESHES = {"laptop": (2, 2), "piz_daint": (4, 1), "gcp_a100": (2, 4)}
GRAPHS = {"mlp": MLP, "residual": residual(3, 128, 256), "attention": attention(2, 16, 16, 32, 4)}
OPTIONS = {
    "plain": {},
    "micro-batches": {"micro_batches": 2},
    "recomputed": {"checkpointing": "all"},
    "alone": {"baselines": False},
}


def plans() -> dict[str, Plan]:
    """Of three models on three machines, in one way or another, and one in stages."""
    found, ways = {"stages": STAGED}, itertools.cycle(OPTIONS.items())
    for graph_name, machine in itertools.product(GRAPHS, MESHES):
        how, options = next(ways)
        where = cluster(machine, *MESHES[machine])
        found[f"{graph_name} {machine} {how}"] = find_plan(
            GRAPHS[graph_name], where, PlanOptions(**options)
        )
    return found


PLANS = plans()


@pytest.fixture(params=PLANS)
def plan(request) -> Plan:
    return PLANS[request.param]


class Cells(HTMLParser):
    """(part, section, row, key) -> text, of every element that has the name of a value."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: dict[tuple[str, str, str, str], str] = {}
        self._part = self._section = self._row = self._key = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag == "section":
            self._part, self._section = named.get("data-part") or "", named["data-section"] or ""
            self._row = ""
        self._row = named.get("data-row") or self._row
        self._key = named.get("data-key") or ""

    def handle_data(self, data):
        if self._key:
            self.found[self._part, self._section, self._row, self._key] = data

    def handle_endtag(self, tag):
        self._key = ""


@pytest.mark.parametrize("notation", NOTATIONS)
def test_page_and_text_show_what_json_says(plan, notation):
    whole = report(plan)
    shown = whole.in_notation(notation)
    page, told, words = Cells(render(whole)).found, whole.to_json(), text(whole, notation=notation)
    lines = [re.split(r"  +", line.strip()) for line in words.splitlines()]
    for part, section in shown.all_sections():
        home = told["stages"][int(part.split()[1])]["plan"] if part else told
        if isinstance(section, Figures):
            values = home[section.key] if section.key else home
            for figure in section.shown:
                expected = written(values[figure.key], figure.unit)
                assert page[part, section.key, "", figure.key] == expected
                assert f"{figure.title} {expected}" in words
            continue
        rows = list(home[section.key].values()) if section.by_name else home[section.key]
        own = section.shown()
        assert sum(row.count for row in own) == len(rows) > 0
        for column in (c for c in section.columns if c.adds):
            whole = sum(row[column.key] for row in rows)
            shares: list = [row.values[column.key] for row in own]
            assert sum(shares) == pytest.approx(whole)
        for number, row in enumerate(own):
            same = rows[number] if row.count == 1 and not section.folds else row.values
            name = written(row.values[section.columns[0].key], section.columns[0].unit)
            for column in (c for c in section.columns if c.unit != "lines"):
                expected = written(same.get(column.key), column.unit)
                on_page = page.get((part, section.key, str(number), column.key), "")
                assert notation != "words" or on_page == expected
                assert any(line[0].startswith(name) and expected in " ".join(line[0:])
                           for line in lines)  # fmt: skip
        if section.totals:
            for column in (c for c in section.columns if c.adds):
                expected = written(sum(row[column.key] for row in rows), column.unit)
                assert page[part, section.key, "total", column.key] == expected
                assert any(line[0] == section.total and expected in line for line in lines)


def test_totals_are_those_of_the_plan(plan):
    shown = report(plan)
    for number, part in enumerate(shown.parts):
        stage = plan.stages[number]
        tables = {s.key: s for s in part.sections if isinstance(s, Table)}
        cost, layers = stage_figures(stage).cost, tables["layers"].sums
        assert layers["compute_s"] == pytest.approx(cost.compute_s)
        assert layers["communication_s"] == pytest.approx(cost.communication_s)
        assert layers["nic_bytes"] == pytest.approx(cost.nic_bytes.total)
        assert layers["intra_bytes"] == pytest.approx(cost.intra_bytes.total)
        assert layers["memory_bytes"] == pytest.approx(cost.memory_bytes)
        assert tables["time"].sums["seconds"] == pytest.approx(cost.iteration_s)
        assert tables["time"].sums["share"] == pytest.approx(1)
        assert tables["memory"].sums["bytes"] == stage_figures(stage).required_bytes()
    assert shown.to_json()["memory_bytes"] == max(figures(plan).needed_bytes)


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@pytest.mark.parametrize("name", [n for n in PLANS if not n.startswith("attention")])
def test_seconds_of_redistributions_are_those_of_their_layer(name):
    # an attention's operators have collectives of their own as well
    for number, part in enumerate(report(PLANS[name]).parts):
        (layers,) = (s for s in part.sections if isinstance(s, Table) and s.key == "layers")
        for row in layers.rows:
            told, lines = 0.0, row["moves"]
            assert isinstance(lines, tuple)
            for line in lines:
                count = re.search(r", (\d+) times a step$", line)
                parts = re.findall(r"a device in ([\d.e+-]+) (\w?s)", line)
                once = sum(float(seconds) * UNITS[unit] for seconds, unit in parts)
                told += once * (int(count[1]) if count else 1)
            assert told == pytest.approx(row["communication_s"], rel=6e-3), (number, row["name"])


def test_rows_are_shared_only_if_they_read_alike():
    columns = (
        Column("name", "n"),
        Column("s", "time", "seconds", adds=True),
        Column("how", "how"),
        Column("moves", "moves", "lines", apart=True),
    )

    def row(name, s, how="x", moves=("tensor 1",)):
        return {"name": name, "s": s, "how": how, "moves": moves}

    rows = (
        row("b.0.f1", 1.0), row("b.1.f1", 1.0001, moves=("tensor 2",)), row("b.2.f1", 2.0),
        row("b.3.f1", 1.0, "y"), row("head", 1.0), row("b.4.f1", 1.0, moves=("other",)),
    )  # fmt: skip
    shown = Table("t", "", columns, rows, folds=True, total="all").shown()
    named = [(r.values["name"], r.count) for r in shown]
    assert named == [("b.*.f1", 2), ("b.2.f1", 1), ("b.3.f1", 1), ("head", 1), ("b.4.f1", 1)]
    assert shown[0].values["s"] == pytest.approx(2.0001)
    assert Table("t", "", columns, rows, total="all").totals == {
        "name": "all", "s": pytest.approx(7.0001)
    }  # fmt: skip


def test_the_object_has_the_promised_fields():
    told = json.loads(json.dumps(report(PLAN).to_json()))
    assert told["cluster"]["nodes"] == 2 and told["seed"] == 5
    cost = told["cost"]
    exposed_s = cost["communication_s"] - cost["hidden_s"]
    assert cost["iteration_s"] == pytest.approx(cost["compute_s"] + exposed_s)
    for link in ("per_nic", "per_device_intra"):
        parts = told["link_bytes"][link]
        assert parts["total"] == parts["forward"] + parts["backward"] + parts["gradient_sync"]
    assert told["memory_bytes"] == sum(cause["bytes"] for cause in told["memory"]) > 0
    assert {"algorithm", "evaluations", "seconds"} <= told["search"].keys()
    names = [layer["name"] for layer in told["layers"]]
    assert names == ["block0.fc1", "block0.fc2", "block1.fc1", "block1.fc2"]
    for layer in told["layers"]:
        assert layer["op"] == "matmul" and re.match(r"(batch|out|in) \d", layer["split"])
        assert layer["topology"].startswith("(S0:(")
        assert "->" in layer["signature"] and layer["next_best"]
    assert len(told["stages"]) == 1 and told["transfers"] == []


def test_the_certificate_is_in_the_object_and_in_words():
    graph, where = mlp(4096, (32, 32, 32)), cluster("piz_daint", 4, 1)
    proven = find_plan(graph, where, PlanOptions(overlap=False))
    told = report(proven).to_json()
    search, bounds = told["search"], told["bounds"]
    assert search["proven"] is True and search["gap"] == 0.0
    assert search["lower_bound_s"] == pytest.approx(figures(proven).cost.iteration_s, rel=3e-6)
    assert bounds["matmul_bytes"] == max(
        bounds["memory_independent_bytes"], bounds["memory_dependent_bytes"]
    )
    assert bounds["matmul_bytes"] <= bounds["moved_bytes"]
    words = "optimal in this space for its micro-batches (gap 0)"
    assert words in explain(proven) and any(words in note for note in told["notes"])
    guessed = find_plan(
        graph, where, PlanOptions(search="random", restarts=1, baselines=False, overlap=False)
    )
    search = report(guessed).to_json()["search"]
    assert search["lower_bound_s"] <= figures(proven).cost.iteration_s
    assert (
        search["gap"]
        >= figures(guessed).cost.iteration_s / figures(proven).cost.iteration_s - 1
        > 0
    )
    assert search["proven"] is False
    most = written(search["gap"], "share")
    assert f"with as many micro-batches is more than {most} faster" in explain(guessed)
