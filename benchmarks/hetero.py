"""Hosts that are not alike, in a box: two fast and two slow ones, 3:1, with emulated compute.

    python -m benchmarks.hetero [--rates 100mbit 400mbit] [--models ...] [--visits N]

Each model is planned for devices at which a data parallel step with equal parts computes for 65 %
of its time; computation is all arithmetic. Then the step is measured of

    ours              the plan that is searched: placements, shares and ways of collectives
    best even         the best plan with equal parts
    data, by speed    data parallelism in proportion to the speed of the devices (HAP's DP-CP)
    data, even        with equal parts (HAP's DP-EV)

in turns, beside what is predicted. With equal parts the slow hosts take 3 times as long as the fast
ones: if all of a step were computation that is divided, dividing it by speed would halve the step.
Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoddl.cluster import Cluster
from autoddl.cluster.spec import HostGroup
from autoddl.cost.operators import at_rate
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated
from benchmarks.box.results import FOLDER, machine, save, where_and_when
from benchmarks.box.work import run_plans

MODELS = ("wide_mlp", "vgg", "wide_gpt")
RATIO = 3  # of the fast devices' speed to the slow ones'
COMPUTED = 0.65  # of a data parallel step with equal parts
CALIBRATE = "--max-bytes 4194304 --repeats 5 --budget 120 --no-point-to-point"


@dataclass(frozen=True)
class Case:
    """Seconds of a step; `computed` of the even data parallel step's are computation."""

    model: str
    rate: str
    plan: str
    shares: str
    predicted_s: float
    measured_s: float
    computed: float
    samples: list[float]


def unlike(cluster: Cluster, flops_per_s: float, ratio: float = RATIO) -> Cluster:
    """Two fast and two slow hosts; links as they are."""
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e15, launch_s=0.0)
    groups = tuple(
        HostGroup(name, 2, device=at_rate(device, flops_per_s * speed))
        for name, speed in (("fast", ratio), ("slow", 1))
    )
    return replace(cluster, device=at_rate(device, flops_per_s), groups=groups)


def plans_of(graph: Graph, cluster: Cluster) -> tuple[dict[str, Plan], float]:
    """By name, and the share of computation in the even data parallel step."""
    own = data_parallel(graph)

    def data(shares: str, flops_per_s: float) -> Plan:
        return find_plan(graph, unlike(cluster, flops_per_s), options(shares), space=own)

    rate = 1e9
    cost = stage_figures(data("even", rate).stage).cost
    rate *= cost.compute_s / cost.communication_s * (1 - COMPUTED) / COMPUTED
    where, even = unlike(cluster, rate), data("even", rate)
    cost = stage_figures(even.stage).cost
    return {
        "ours": find_plan(graph, where, options(None)),
        "best even": find_plan(graph, where, options("even")),
        "data, by speed": data(f"{RATIO}:1", rate),
        "data, even": even,
    }, cost.compute_s / cost.iteration_s


def options(shares: str | None) -> PlanOptions:
    return PlanOptions(
        overlap=False, optimizer="sgd", micro_batches=1, baselines=False, zero=False, shares=shares
    )


def measure(
    box: Box, rate: str, cluster: Cluster, model: str, visits: int, steps: int
) -> list[Case]:
    """All plans in turns, with trainers built anew at each visit."""
    plans, computed = plans_of(trace_entry(f"benchmarks.box.models:{model}"), cluster)
    turns = [plan for _ in range(visits) for plan in plans.values()]
    rows = [_seconds(row) for row in run_plans(box, turns, steps, measure="seconds")]
    each, found = len(rows) // len(turns), []
    for number, (name, plan) in enumerate(plans.items()):
        starts = [(visit * len(plans) + number) * each for visit in range(visits)]
        samples = [seconds for start in starts for seconds in rows[start : start + each]]
        found.append(
            Case(
                model, rate, name, ":".join(map(str, plan.stage.shares)) or "even",
                stage_figures(plan.stage).cost.iteration_s, statistics.median(samples), computed,
                [round(seconds, 5) for seconds in samples],
            )
        )  # fmt: skip
    return found


def _seconds(row: Sequence[Mapping[str, Sequence[float]]]) -> float:
    """Of a step, of what the hosts saw."""
    return statistics.median(second for host in row for second in host["seconds"])


def table(cases: Sequence[Case], about: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        "# Two fast and two slow hosts, 3:1",
        "",
        "Seconds of a step by `python -m benchmarks.hetero`: measured and predicted with emulated",
        "compute, and how many times as long as ours each plan takes. Of the data parallel step",
        f"with equal parts {COMPUTED:.0%} are computation.",
        "",
        where_and_when(about),
        "",
        "| model, links | plan | shares | measured | predicted | ratio | times ours | predicted |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    ours = {(c.model, c.rate): c for c in cases if c.plan == "ours"}
    for c in cases:
        own = ours[c.model, c.rate]
        lines.append(
            f"| {c.model}, {c.rate} | {c.plan} | {c.shares} | {c.measured_s:.3f} "
            f"| {c.predicted_s:.3f} | {c.measured_s / c.predicted_s:.2f} "
            f"| {c.measured_s / own.measured_s:.2f} | {c.predicted_s / own.predicted_s:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "400mbit"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--visits", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--recalibrate", action="store_true")
    args = parser.parse_args()
    path = FOLDER / "hetero.json"
    old = json.loads(path.read_text())["cases"] if path.exists() else []
    cases = [Case(**case) for case in old]
    for rate in args.rates:
        with Box(4, 1, rate) as box:
            cluster = calibrated(box, rate, args.recalibrate, CALIBRATE.split())
            for model in args.models:
                new = measure(box, rate, cluster, model, args.visits, args.steps)
                cases = [c for c in cases if (c.model, c.rate) != (model, rate)] + new
                about = machine()
                found = {"machine": about, "cases": [asdict(c) for c in cases]}
                save(path.stem, found, table(cases, about))
                print(table(cases, about), flush=True)


if __name__ == "__main__":
    main()
