"""Seconds of what saves memory, measured in a box: ZeRO, recomputation, accumulation.

`python -m benchmarks.memory_seconds` (needs root). Plans of a GPT of two blocks, searched within
lower and lower limits and the known schemes with several micro-batches and recomputed blocks, take
turns with emulated compute, as in `benchmarks.truth`. The table goes to benchmarks/results/memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from autoddl._files import write_atomically
from autoddl.cluster import Cluster
from autoddl.cost.operators import at_rate
from autoddl.cost.recompute import Checkpointing
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated
from benchmarks.box.plan_set import Named
from benchmarks.box.results import machine
from benchmarks.box.truth_report import Measured, agreement
from benchmarks.memory import ROOT
from benchmarks.truth import FLOPS_PER_S, GPUS, NODES, NOTE, measure

MODEL = "gpt_blocks"
SHARES = (0.75, 0.5, 0.35, 0.25, 0.18)  # of the memory of the plan without a limit
# micro-batches and blocks to run again of data parallelism that stores everything whole
WHOLE: tuple[tuple[int, Checkpointing], ...] = ((1, "none"), (1, "all"), (4, "none"), (4, "all"))
RULE = "shared_nic"


def plans(graph: Graph, cluster: Cluster) -> list[Named]:
    """Different plans, each with what it is."""
    free = find_plan(graph, cluster, PlanOptions(overlap=False, optimizer="sgd"))
    found = [("searched, no limit", free)]
    needed = stage_figures(free.stage).memory_peak("executor").bytes
    for share in SHARES:
        plan = find_plan(
            graph,
            cluster,
            PlanOptions(overlap=False, optimizer="sgd", memory_limit_bytes=share * needed),
        )
        found.append((f"searched, {share:.0%} of that memory", plan))
    whole = data_parallel(graph)
    for parts, checkpointing in WHOLE:
        plan = find_plan(
            graph,
            cluster,
            PlanOptions(
                overlap=False,
                optimizer="sgd",
                zero=False,
                micro_batches=parts,
                checkpointing=checkpointing,
            ),
            space=whole,
        )
        found.append(("data parallel", plan))
    for parts in (1, 4):
        known = baseline_plans(
            graph,
            cluster,
            PlanOptions(
                overlap=False, optimizer="sgd", micro_batches=parts, memory_limit_bytes=1e12
            ),
        )
        for name in ("ZeRO", "Megatron+ZeRO"):
            plan = known[name][1] if name in known else None
            if plan is not None:
                found.append((name, plan))
    different = {plan.dumps(): (name, plan) for name, plan in found}
    return list(different.values())


def markdown(named: Sequence[Named], cases: Sequence[Measured], about: dict[str, object]) -> str:
    steps = agreement([c.predicted_step_s(RULE) for c in cases], [c.step_s for c in cases])
    comm = agreement([c.predicted_comm_s[RULE] for c in cases], [c.comm_s for c in cases])
    lines = [
        "# Seconds of ZeRO, recomputation and accumulation (emulated compute)",
        "",
        f"{about['processor']}, {about['cores']} cores, load average {about['load_average']}, "
        f"{about['date']}; {NOTE}. Spearman's rank correlation, median |predicted / measured - 1| "
        f"(median of the signed error) of {len(cases)} plans: whole step {steps}; communication "
        f"{comm}.",
        "",
        "| plan | micro-batches | blocks run again | ZeRO | memory MB | step: predicted s | measured s | ratio | communication: predicted s | measured s | ratio |",  # noqa: E501
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (name, plan), case in zip(named, cases, strict=True):
        zero = sorted({edge.zero_stage for edge in plan.stage.edges.values()} - {0})
        step, moved = case.predicted_step_s(RULE), case.predicted_comm_s[RULE]
        lines.append(
            f"| {name} | {plan.micro_batches} | {len(plan.recomputed) or '-'} | "
            f"{', '.join(map(str, zero)) or '-'} | "
            f"{stage_figures(plan.stage).memory_peak('executor').bytes / 1e6:.2f} | "
            f"{step:.3f} | {case.step_s:.3f} | "
            f"{step / case.step_s:.3f} | {moved:.3f} | {case.comm_s:.3f} | "
            f"{moved / case.comm_s:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--visits", type=int, default=2, help="times that all plans take turns")
    parser.add_argument("--steps", type=int, default=2, help="steps timed at a visit")
    args = parser.parse_args()
    with Box(NODES, GPUS, args.rate) as box:
        cluster = calibrated(box, args.rate, False, [])
        cluster = replace(cluster, device=at_rate(cluster.device, FLOPS_PER_S))
        graph = trace_entry(f"benchmarks.box.models:{MODEL}")
        named = plans(graph, cluster)
        cases = measure(box, MODEL, args.rate, named, args.visits, args.steps)
    about = machine()
    text = markdown(named, cases, about)
    folder = ROOT / "benchmarks" / "results" / "memory"
    found = {"machine": {**about, "note": NOTE}, "cases": [asdict(case) for case in cases]}
    write_atomically(folder / "seconds.json", json.dumps(found, indent=1))
    write_atomically(folder / "seconds.md", text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
