"""Whale's balance of work on unlike hosts, in a box with emulated compute: `make bench-whale-box`.

    python -m benchmarks.whale_box [stages] [rows] [--visits N]

Whale (Jia et al., ATC 2022, section 3.3) gives faster devices more rows of the batch, and more
layers. In the box, as its Figures 18 and 17 do on 8 V100 and 8 P100:

    stages   four stages on hosts of speed 3:3:1:1, beside the same model cut evenly, its hosts in
             the best order for that
    rows     data parallelism on two fast and two slow hosts, 1.8:1, rows by speed beside equal rows

What a step should take is the plan's own prediction (rows), or the simulated schedule (stages).
Rows by speed could at best take (r + 1) / 2 of what equal rows take to compute: the ideal. Needs
root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.bytes import LAPTOP
from benchmarks.box.machines import calibrated
from benchmarks.box.reshard import fitted
from benchmarks.box.results import FOLDER, machine, save, where_and_when
from benchmarks.box.work import run_pipelines, run_plans
from benchmarks.hetero import CALIBRATE, unlike
from benchmarks.pipeline import predicted

STAGES, MICRO_BATCHES = 4, 16
STAGE_RATIO, ROW_RATIO = 3.0, 1.8
FLOPS_PER_S = 3.6e9  # of a slow device whose stages compute: transfers are short beside that
COMPUTED = 0.9  # of a data parallel step with equal rows
ROW_MODELS = {"mlp": 512, "gpt": 256}  # rows of the batch


def staged(graph: Graph, where: Cluster) -> dict[str, Plan]:
    """Cut by work, and cut evenly: as many of the model's equal layers in each stage."""
    asked = PlanOptions(overlap=False,
        stages=STAGES, schedule="eager-1f1b", optimizer="sgd", micro_batches=MICRO_BATCHES,
        baselines=False,
    )  # fmt: skip
    products = [op.module for op in graph.ops if "matmul" in op.kind]
    each = len(products) // STAGES
    even = {name: "stage()" for name in products[each::each]}
    return {
        "by work": find_plan(graph, where, asked),
        "even": find_plan(graph, where, replace(asked, hints=even)),
    }


def measure_stages(visits: int, again: bool) -> list[dict[str, Any]]:
    del again  # links are fitted anyway
    graph = trace_entry("benchmarks.box.models:chain")
    laptop = Cluster.load(LAPTOP)
    with Box(STAGES, 2, "200mbit") as box:
        links, _control = fitted(box, laptop.with_shape(STAGES, 2))
    where = unlike(links.with_shape(STAGES, 1), FLOPS_PER_S, STAGE_RATIO)
    plans = staged(graph, where)
    turn = {"overlap": True, "signal": False, "emulate": True}
    with Box(STAGES, 1, "200mbit") as box:
        runs = [{"plan": name.replace(" ", "_"), **turn} for name in plans]
        named = {name.replace(" ", "_"): plan for name, plan in plans.items()}
        readings = run_pipelines(box, runs, named, visits)
    found = []
    for number, (name, plan) in enumerate(plans.items()):
        turns = readings[number :: len(plans)]
        samples = [max(host["seconds"][0] for host in hosts) for hosts in turns]
        groups = [where.groups[where.group_of(s.place.first_node)].name for s in plan.stages]
        cuts = [f"{group} {len(_products(stage.graph))}" for group, stage in
                zip(groups, plan.stages, strict=True)]  # fmt: skip
        found.append({
            "case": f"{STAGES} stages, {STAGE_RATIO:g}:1", "plan": name, "parts": ", ".join(cuts),
            "predicted_s": predicted(plan, figures(plan).pass_costs, True, True),
            "measured_s": statistics.median(samples), "samples": samples,
        })  # fmt: skip
    return found


def _products(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if "matmul" in op.kind]


def measure_rows(visits: int, again: bool) -> list[dict[str, Any]]:
    found = []
    with Box(4, 1, "400mbit") as box:
        cluster = calibrated(box, "400mbit", again, CALIBRATE.split())
        for model, batch in ROW_MODELS.items():
            graph = trace_entry(f"benchmarks.box.models:{model}").with_batch(batch)
            plans = by_rows(graph, cluster)
            rows = run_plans(box, list(plans.values()) * visits, 3, measure="seconds")
            for number, (name, plan) in enumerate(plans.items()):
                steps, computed = _of_steps(rows[number :: len(plans)])
                cost = stage_figures(plan.stage).cost
                found.append({
                    "case": f"{model}, {ROW_RATIO:g}:1", "plan": name,
                    "parts": ":".join(map(str, plan.stage.shares)) or "equal",
                    "predicted_s": cost.iteration_s, "measured_s": statistics.median(steps),
                    "samples": steps, "computed_s": statistics.median(computed),
                })  # fmt: skip
    return found


def _of_steps(turns: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[float], list[float]]:
    """Of each step its seconds, and those that the host computes for that waits least."""
    steps, computed = [], []
    for hosts in turns:
        taken = [host["seconds"] for host in hosts]
        waits = [host["parts"] for host in hosts]
        for own, idle in zip(zip(*taken, strict=True), zip(*waits, strict=True), strict=True):
            steps.append(max(own))
            computed.append(max(a - b for a, b in zip(own, idle, strict=True)))
    return steps, computed


def by_rows(graph: Graph, cluster: Cluster) -> dict[str, Plan]:
    """Data parallelism with rows by speed, and with equal rows."""
    own, rate = data_parallel(graph), 1e9

    def plan(shares: str | None, flops_per_s: float) -> Plan:
        where = unlike(cluster, flops_per_s, ROW_RATIO)
        asked = PlanOptions(
            overlap=False,
            optimizer="sgd",
            micro_batches=1,
            baselines=False,
            zero=False,
            shares=shares,
        )
        return find_plan(graph, where, asked, space=own)

    cost = stage_figures(plan("even", rate).stage).cost
    rate *= cost.compute_s / cost.communication_s * (1 - COMPUTED) / COMPUTED
    return {"by speed": plan(None, rate), "equal rows": plan("even", rate)}


def table(cases: list[dict[str, Any]], about: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        "# Whale's balance of work on unlike hosts",
        "",
        "Seconds of a step by `python -m benchmarks.whale_box`, with emulated compute. Stages:",
        "how many products lie on which host; predicted is the simulated schedule. Rows: data",
        f"parallelism whose step computes for {COMPUTED:.0%} of it with equal rows.",
        "",
        where_and_when(about),
        "",
        "| case | plan | parts | measured | predicted | ratio | times as fast |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    slow = {c["case"]: c for c in cases if c["plan"] in ("even", "equal rows")}
    for case in cases:
        gain = slow[case["case"]]["measured_s"] / case["measured_s"]
        lines.append(
            f"| {case['case']} | {case['plan']} | {case['parts']} | {case['measured_s']:.3f} "
            f"| {case['predicted_s']:.3f} | {case['measured_s'] / case['predicted_s']:.3f} "
            f"| {gain:.2f} |"
        )
    lines += ["", "Computation alone, on the host that waits least:", ""]
    lines += ["| case | equal rows | ideal | by speed | ideal / by speed |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for case in cases:
        if case["plan"] == "by speed":
            equal = slow[case["case"]]["computed_s"]
            ideal = equal * 2 / (ROW_RATIO + 1)
            lines.append(
                f"| {case['case']} | {equal:.3f} | {ideal:.3f} | {case['computed_s']:.3f} "
                f"| {ideal / case['computed_s']:.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", default=["stages", "rows"])
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--recalibrate", action="store_true")
    args = parser.parse_args()
    path = FOLDER / "whale.json"
    cases = json.loads(path.read_text())["cases"] if path.exists() else []
    for what, measure in (("stages", measure_stages), ("rows", measure_rows)):
        if what in args.what:
            new = measure(args.visits, args.recalibrate)
            names = {case["case"] for case in new}
            cases = [case for case in cases if case["case"] not in names] + new
            about = machine()
            save(path.stem, {"machine": about, "cases": cases}, table(cases, about))
    print(table(cases, machine()))


if __name__ == "__main__":
    main()
