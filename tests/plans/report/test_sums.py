"""What people read in a table adds up to the total that they read, in sixty plans of all kinds."""

import functools
import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from autoddl.cluster.spec import HostGroup
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from autoddl.plans.report.sections import Report, Table
from autoddl.plans.report.terminal import PIPE_WIDTH, text
from autoddl.tools.cli import main
from autoddl.tools.compare import compare
from autoddl.tools.report.compare import comparison_report
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual
from tests.plans.report.printed import cell, number, tables

SHAPES = ((1, 1), (2, 2), (4, 1), (1, 4), (2, 3), (2, 4))
MACHINES = ("laptop", "piz_daint", "gcp_a100")
KINDS = (
    "plain", "micro-batches", "tight", "ZeRO", "run again", "float16", "stages", "overlap",
    "in flight", "shares", "unlike hosts", "stages on unlike hosts", "hints", "hints in stages",
    "PyTorch",
)  # fmt: skip
NO_OTHERS = PlanOptions(baselines=False)
DEVICE = cluster("laptop", 2, 2).device
SLOW = replace(
    DEVICE, memory_bytes=2e9, flops_per_s={d: r / 3 for d, r in DEVICE.flops_per_s.items()}
)
UNLIKE = HostGroup("fast", 1), HostGroup("slow", 1, SLOW)
OTHERS = ("scheme", "split", "micro-batches", "x ours")  # columns without a unit
FULL = pytest.mark.full
SEVERAL, QUICK = 60, 15  # plans, and those of which CI looks at all: one of each kind


def some_graph(rng: random.Random) -> Graph:
    batch, width = rng.choice((16, 24, 32)), rng.choice((16, 32, 64))
    kind = rng.randrange(3)
    if kind == 0:
        return mlp(batch, tuple(rng.choice((16, 48, 128)) for _ in range(rng.randint(3, 6))))
    if kind == 1:
        return residual(rng.randint(1, 3), batch, 2 * width)
    return attention(rng.randint(1, 2), batch, 8, width, 4)


@functools.cache
def some_plan(number: int) -> Plan:
    """The plan of a random graph, made in the way whose turn it is."""
    rng, kind = random.Random(number), KINDS[number % len(KINDS)]
    where = cluster(rng.choice(MACHINES), *rng.choice(SHAPES))
    if kind == "stages":
        layers = mlp(16, (32, *(rng.choice((32, 64)) for _ in range(3)), 16))
        where = cluster(rng.choice(MACHINES), 2, rng.choice((1, 2)))
        return find_plan(layers, where, PlanOptions(stages=2, micro_batches=4))
    if kind == "stages on unlike hosts":
        where = replace(cluster("laptop", 2, 2), groups=UNLIKE)
        return find_plan(
            mlp(512, (32, 64, rng.choice((64, 128)), 32)), where, PlanOptions(stages=2)
        )
    if kind.startswith("hints"):
        hints = {"fc0": rng.choice(("replicate(2)", "split(2)")), "fc1": "split(2)"}
        given = replace(NO_OTHERS, hints=hints, stages=2 if "stages" in kind else None)
        return find_plan(
            mlp(rng.choice((16, 512)), (32, 64, 48, 32)), cluster("laptop", 2, 2), given
        )
    if kind == "unlike hosts":
        where = replace(cluster("laptop", 2, rng.choice((1, 2))), groups=UNLIKE)
        return find_plan(mlp(480, (256, 512, rng.choice((256, 128)))), where, PlanOptions())
    if kind == "tight":
        graph, where = residual(2, 256, rng.choice((48, 64))), cluster("laptop", 2, 2)
        limit = 0.7 * figures(find_plan(graph, where, NO_OTHERS)).needed_bytes[0]
        return find_plan(graph, where, replace(NO_OTHERS, memory_limit_bytes=limit))
    if kind == "ZeRO":
        plan = baseline_plans(mlp(16, (32, 64)), where.with_shape(2, 2))["ZeRO"][1]
        assert plan is not None
        return plan
    if kind in ("overlap", "in flight"):
        graph, where = residual(rng.choice((2, 3)), 512, 64), cluster("laptop", 2, 2)
        both = 2 if kind == "in flight" else 1
        return find_plan(graph, where, replace(NO_OTHERS, overlap=True, in_flight=both))
    if kind == "shares":
        where = cluster(rng.choice(MACHINES), 2, rng.choice((1, 2)))
        where = replace(where, groups=(HostGroup("fast", 1), HostGroup("slow", 1)))
        return find_plan(some_graph(rng), where, replace(NO_OTHERS, shares="3:1"))
    if kind == "run again":
        return find_plan(residual(3, 32, 64), where, PlanOptions(checkpointing="all"))
    if kind == "float16":
        where = cluster("gcp_a100", where.nodes, where.gpus_per_node)
        return find_plan(some_graph(rng), where, replace(NO_OTHERS, precision="float16"))
    if kind == "PyTorch":
        return find_plan(some_graph(rng), where, replace(NO_OTHERS, back_end="torch"))
    parts = rng.choice((2, 4)) if kind == "micro-batches" else None
    options = PlanOptions(optimizer=rng.choice(("adam", "sgd", "momentum")), micro_batches=parts)
    return find_plan(some_graph(rng), where, options)


def read_tables(shown: Report) -> Iterator[tuple[Table, list[list[str]]]]:
    """Each table with totals, and the cells of its rows as text, the totals last."""
    lines = iter(text(shown, width=PIPE_WIDTH).splitlines())
    for _, section in shown.in_notation("words").all_sections():
        if not isinstance(section, Table) or not section.totals:
            continue
        for line in lines:
            if line == section.title:
                break
        rows = []
        for line in lines:
            cells = re.split(r" {2,}", line.strip())
            if len(cells) > sum(c.adds for c in section.columns):
                rows.append(cells)
            if cells[0] == section.total:
                break
        yield section, rows[1:]


def test_they_are_of_all_kinds():
    plans = [some_plan(number) for number in range(QUICK)]
    assert len({plan.cluster.mesh for plan in plans}) >= 5
    assert len({plan.cluster.name for plan in plans}) == 3
    assert {plan.num_stages for plan in plans} == {1, 2}
    assert {plan.precision for plan in plans} == {"float32", "float16"}
    assert sum(plan.micro_batches > 1 for plan in plans) >= 3
    assert sum(bool(plan.recomputed) for plan in plans) >= 1
    assert {stage.back_end for plan in plans for stage in plan.stages} == {"oneflow", "torch"}
    assert sum(any(stage.buckets for stage in plan.stages) for plan in plans) >= 4
    assert sum(any(stage.turns for stage in plan.stages) for plan in plans) >= 1
    assert sum(any(stage.shares for stage in plan.stages) for plan in plans) >= 1
    assert sum(bool(plan.hints) for plan in plans) >= 2
    assert sum(bool(plan.cluster.groups) for plan in plans) >= 2
    stored = [any(e.zero_stage for s in plan.stages for e in s.edges.values()) for plan in plans]
    assert sum(stored) >= 1
    assert len({str(layer.split) for plan in plans for layer in plan.layers}) > 9


@pytest.mark.parametrize(
    "number_",
    [
        pytest.param(n, id=f"{n} {KINDS[n % len(KINDS)]}", marks=() if n < QUICK else FULL)
        for n in range(SEVERAL)
    ],
)
def test_columns_that_are_read_add_up_to_their_totals(number_: int):
    plan = some_plan(number_)
    told, seen = report(plan).to_json(), 0
    for table, rows in read_tables(report(plan)):
        columns = [column for column in table.given if not column.apart and column.adds]
        assert len(rows) == len(table.shown()) + 1 > 1
        for place, column in enumerate(reversed(columns), start=1):
            *parts, (whole, off) = (number(cells[-place]) for cells in rows)
            allowed = off + sum(part[1] for part in parts)
            assert sum(part[0] for part in parts) == pytest.approx(whole, abs=allowed), column
        seen += 1
    shown = len(set(figures(plan).same_as))
    assert seen == 3 * shown  # time, memory, layers
    for own in [told] if len(plan.stages) == 1 else [s["plan"] for s in told["stages"]]:
        cost, layers = own["cost"], own["layers"]
        for key in ("compute_s", "communication_s"):
            assert sum(layer[key] for layer in layers) == pytest.approx(cost[key], rel=1e-9)
        serial_s = cost["compute_s"] + cost["communication_s"]
        assert serial_s - cost.get("hidden_s", 0.0) == pytest.approx(cost["iteration_s"])
        for link, key in (("per_nic", "nic_bytes"), ("per_device_intra", "intra_bytes")):
            assert sum(layer[key] for layer in layers) == own["link_bytes"][link]["total"]


@pytest.mark.parametrize("number_", range(0, QUICK, 6))
def test_what_is_read_of_each_scheme_adds_up(number_: int):
    plan = some_plan(number_)
    shown = comparison_report(compare(plan.graph, plan.cluster, PlanOptions(micro_batches=1)))
    lines = [
        re.split(r" {2,}", line.strip()) for line in text(shown, width=PIPE_WIDTH).splitlines()
    ]
    header = next(cells for cells in lines if cells[0] == "scheme")
    names = [scheme["name"] for scheme in shown.to_json()["schemes"] if scheme["fits"]]
    rows = [cells for cells in lines if cells[0] in names]
    assert len(rows) == len(names) > 0
    for cells in rows:
        read = {title: cell for title, cell in zip(header, cells, strict=False)}
        values = {t: number(c) for t, c in read.items() if t not in OTHERS}
        for whole, parts in (
            ("a step", ("comput.", "comm.", "hidden")),
            ("comm.", ("forward", "backward", "gradients")),
        ):
            signs = [(-1 if t == "hidden" else 1, *values[t]) for t in parts if t in values]
            allowed = values[whole][1] + sum(off for _, _, off in signs)
            added = sum(sign * value for sign, value, _ in signs)
            assert added == pytest.approx(values[whole][0], abs=allowed)


def check_printed(printed: str, width: int) -> int:
    """Lines fit, no column is empty, and columns add up; the number of those that were added up."""
    assert max(map(len, printed.splitlines())) <= width
    added = 0
    for table in tables(printed):
        for title, start, end in table.columns:
            assert not table.is_empty(start, end), (title, table.lines)
            if not table.total or not (told := cell(table.total, end)) or start == 0:
                continue
            parts = [number(own) for line in table.lines if (own := cell(line, end))]
            whole, off = number(told)
            allowed = off + sum(part[1] for part in parts)
            assert sum(part[0] for part in parts) == pytest.approx(whole, abs=allowed), title
            added += 1
    return added


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("number_", range(0, QUICK, 4))
def test_what_plan_and_explain_print_adds_up_at_every_width(number_: int, width: int):
    plan = some_plan(number_)
    shown = report(plan)
    stages = len(set(figures(plan).same_as))
    assert check_printed(text(shown, width=width), width) >= 9 * stages  # of time, memory, layers
    assert check_printed(text(shown, width=width, brief=True), width) >= 5 * stages


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number_", range(SEVERAL))
def test_what_the_commands_print_of_sixty_plans_adds_up(number_: int, tmp_path, monkeypatch):
    plan = some_plan(number_)
    plan.save(tmp_path / "plan.json")
    plan.graph.save(tmp_path / "graph.json")
    monkeypatch.chdir(tmp_path)
    stages = len(set(figures(plan).same_as))
    where = plan.cluster
    shape = ["--cluster", where.name, "--nodes", str(where.nodes)]
    shape += ["--gpus-per-node", str(where.gpus_per_node)]
    for width in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        assert check_printed(printed("explain", "plan.json"), width) >= 9 * stages
        assert check_printed(printed("explain", "plan.json", "--notation", "sbp"), width)
        assert check_printed(printed("memory", "plan.json"), width)
        if len(plan.stages) == 1 and not where.groups:
            assert check_printed(printed("plan", "graph.json", *shape), width) >= 5
            check_printed(printed("compare", "graph.json", *shape), width)


def printed(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_sum_that_is_off_an_empty_column_and_a_long_line_are_found():
    right = "\n".join((
        "what     time      of",
        "─────────────────────",
        "a        1 ms   0.5 %",
        "b        2 ms   0.5 %",
        "",
        "a step   3 ms     1 %",
    ))  # fmt: skip
    assert check_printed(right, 21) == 2
    for wrong, width in (
        (right, 20),
        (right.replace("3 ms", "4 ms"), 21),
        (right.replace("0.5 %", "     "), 21),
    ):
        with pytest.raises(AssertionError):
            check_printed(wrong, width)
