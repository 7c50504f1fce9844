"""Exchange of gradients in pipeline stages, in buckets and one by one, measured and predicted.

    python -m benchmarks.pipeline_exchange [--rate 100mbit] [--repeats 7] [--text]

Two stages of two hosts each, in a box at the prices that `autoddl calibrate` has measured there,
with emulated compute: waits, which collectives do not slow down. Of each schedule a plan whose
gradients travel in buckets takes turns, step by step, with the one that sends each by itself after
its last pass. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.cost.operators import at_rate
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated
from benchmarks.box.results import machine, where_and_when
from benchmarks.box.work import run_pipelines

FOLDER = Path(__file__).parent / "results" / "pipeline"
NODES, STAGES, MICRO_BATCHES = 4, 2, 4
SCHEDULES = "1f1b", "eager-1f1b", "gpipe"
# With these a backward pass takes about half as long as the exchange of its stage at 100 Mbit/s.
MODELS = {"chain": 1e10, "vgg": 1e10}
CALIBRATE = "--max-bytes 4194304 --repeats 7 --budget 180 --no-point-to-point"


def emulated(cluster: Cluster, flops_per_s: float) -> Cluster:
    """Devices of that rate whose waits nothing slows down."""
    still = {"computation_slowdown_ratio": 0.0, "collective_slowdown_ratio": 0.0}
    intra, inter = (replace(link, **still) for link in (cluster.intra, cluster.inter))
    return replace(cluster, intra=intra, inter=inter, device=at_rate(cluster.device, flops_per_s))


def plans_of(model: str, cluster: Cluster) -> dict[str, Plan]:
    """`schedule` one by one and `schedule in buckets`."""
    graph = trace_entry(f"benchmarks.box.models:{model}")
    shape = PlanOptions(
        stages=STAGES, micro_batches=MICRO_BATCHES, optimizer="sgd", baselines=False
    )
    found: dict[str, Plan] = {}
    for schedule in SCHEDULES:
        options = replace(shape, schedule=schedule)
        found[schedule] = find_plan(graph, cluster, replace(options, overlap=False))
        found[f"{schedule} in buckets"] = find_plan(graph, cluster, options)
    return found


def measure(model: str, rate: str, repeats: int) -> dict[str, Any]:
    """Seconds of a step of each plan, with what is predicted of it."""
    with Box(NODES, 1, rate) as box:
        cluster = emulated(calibrated(box, rate, False, CALIBRATE.split()), MODELS[model])
        plans = plans_of(model, cluster)
        runs = [{"plan": n, "overlap": True, "signal": False, "emulate": True} for n in plans]
        readings = run_pipelines(box, runs, plans, repeats)
    rows: list[dict[str, Any]] = []
    for number, (name, plan) in enumerate(plans.items()):
        samples = [max(h["seconds"][0] for h in hosts) for hosts in readings[number :: len(runs)]]
        known = figures(plan)
        rows.append(
            {
                "plan": name,
                "exchanged_s": [price.once_s + price.hidden_s for price in known.prices],
                "hidden_s": [price.hidden_s for price in known.prices],
                "buckets": [len(stage.buckets) for stage in plan.stages],
                "predicted_s": known.iteration_s,
                "measured_s": statistics.median(samples),
                "samples_s": samples,
            }
        )
    return {"model": model, "rate": rate, "machine": machine(), "rows": rows}


def markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "# The exchange of gradients in pipeline stages",
        "",
        f"{STAGES} stages of {NODES // STAGES} hosts each, {MICRO_BATCHES} micro-batches, emulated "
        "compute, in a box. Seconds of a step whose gradients travel one by one after the last "
        "pass, and in buckets: in the first stage beside its last backward pass. Saved: of the "
        "first, predicted and measured (`python -m benchmarks.pipeline_exchange`).",
    ]
    for result in results:
        rows = {row["plan"]: row for row in result["rows"]}
        lines += [
            "",
            f"## {result['model']} at {result['rate']}",
            "",
            where_and_when(result["machine"]),
            "",
            "| schedule | exchange of the first stage | hidden | one by one: predicted | measured "
            "| in buckets: predicted | measured | saved: predicted | measured |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name in SCHEDULES:
            one, other = rows[name], rows[f"{name} in buckets"]
            saved = [1 - other[key] / one[key] for key in ("predicted_s", "measured_s")]
            lines.append(
                f"| {name} | {one['exchanged_s'][0]:.3f} | {other['hidden_s'][0]:.3f} "
                f"| {one['predicted_s']:.3f} | {one['measured_s']:.3f} "
                f"| {other['predicted_s']:.3f} | {other['measured_s']:.3f} "
                f"| {saved[0]:.1%} | {saved[1]:.1%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--text", action="store_true", help="of the readings that are there")
    args = parser.parse_args()
    path = FOLDER / "exchange.json"
    found = {r["model"]: r for r in (json.loads(path.read_text()) if path.exists() else [])}
    if not args.text:
        found |= {model: measure(model, args.rate, args.repeats) for model in args.models}
    results = [found[model] for model in MODELS if model in found]
    write_atomically(path, json.dumps(results, indent=1))
    write_atomically(FOLDER / "exchange.md", markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
