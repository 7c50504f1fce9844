"""How much of the exchange of gradients is hidden: measured against predicted, in a box.

    python -m benchmarks.overlap_box [--shape 4x2] [--rates 100mbit 400mbit] [--models mlp ...]
                                     [--real]

Plans are made with `overlap=True` at the prices of the box as `autoddl calibrate` has measured it.
Steps of each take turns with steps that wait for every bucket of gradients once it has left: both
send the same, so

    hidden = seconds of the waiting step - seconds of the step

beside what the plan's schedule says is hidden. With emulated compute at a rate where a backward
pass takes as long as the exchange; with `--real` with real computation, on 2 hosts of one process,
where the machine file is measured with the model's operators and with computation beside
collectives. Where buckets of the plan wait, so that no collective queues behind them, the same plan
whose buckets leave as soon as they are full takes turns with it. Needs root. Cases that are not
asked for keep their old results.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoddl.cluster import Cluster
from autoddl.cost.operators import at_rate
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import data_parallel
from autoddl.planner.baselines.spaces import megatron
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.schedule.step import COMPUTING, Step
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated, calibrated_for
from benchmarks.box.results import FOLDER, machine, save, where_and_when
from benchmarks.box.work import run_plans

MODELS = {"wide_mlp": "data parallel", "wide_gpt": "tensor parallel in hosts", "bert_moe": ""}
REAL = ("real_mlp", "data parallel", "2x1", "100mbit")
CALIBRATE = "--max-bytes 4194304 --repeats 7 --budget 180 --no-point-to-point"


@dataclass(frozen=True)
class Case:
    """Seconds of steps, as they are and with waits put in, medians of their `samples`.

    at_measured_price_s: predicted with communication, and real computation, as slow as they were in
        the waiting steps, taken in turns with the others: what is left is the schedule's error
    """

    model: str
    kind: str
    shape: str
    rate: str
    is_real: bool
    buckets: int
    exchange_s: float
    predicted_s: float
    predicted_waiting_s: float
    measured_s: float
    waiting_s: float
    at_measured_price_s: float
    samples: list[list[float]]

    @property
    def hidden(self) -> tuple[float, float]:
        """Seconds of exchange hidden, as predicted and as measured."""
        return self.predicted_waiting_s - self.predicted_s, self.waiting_s - self.measured_s


def entry_of(model: str) -> str:
    return f"benchmarks.box.models:{model}"


def plan_of(graph: Graph, cluster: Cluster, kind: str) -> Plan:
    """The best overlapped plan of a kind."""
    options = PlanOptions(
        optimizer="sgd", micro_batches=1, overlap=True, baselines=not kind, zero=False
    )
    inside = range(cluster.mesh.num_axes - 1)
    spaces = {"data parallel": data_parallel(graph), MODELS["wide_gpt"]: megatron(graph, inside)}
    return find_plan(graph, cluster, options, **({"space": spaces[kind]} if kind else {}))


def balanced(graph: Graph, cluster: Cluster, kind: str) -> Plan:
    """Planned for emulated devices whose backward pass takes as long as the exchange.

    Computation is all arithmetic then: memory is as fast and starts are as quick as no real ones.
    Collectives do not slow waits down, nor these them.
    """
    still = {"computation_slowdown_ratio": 0.0, "collective_slowdown_ratio": 0.0}
    intra, inter = (replace(link, **still) for link in (cluster.intra, cluster.inter))
    cluster = replace(cluster, intra=intra, inter=inter)
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e15, launch_s=0.0)
    rate = 1e9
    for _ in range(2):  # the plan may change with the rate
        plan = plan_of(graph, replace(cluster, device=at_rate(device, rate)), kind)
        maker = stage_figures(plan.stage).maker
        if maker.exchange_s:
            rate *= maker.backward_s / maker.exchange_s
    return plan_of(graph, replace(cluster, device=at_rate(device, rate)), kind)


def beside(
    found: Sequence[tuple[str, str]], plans: Sequence[Plan]
) -> tuple[list[tuple[str, str]], list[Plan]]:
    """The plans, each with buckets that wait beside the same one where none does."""
    every: list[tuple[tuple[str, str], Plan]] = []
    for (model, kind), plan in zip(found, plans, strict=True):
        every.append(((model, kind), plan))
        if any(plan.stage.waits):
            every.append(
                ((model, f"{kind or 'searched'}, no bucket waits"), plan.changed(waits=()))
            )
    return [name for name, _ in every], [plan for _, plan in every]


def measure(
    box: Box, rate: str, models: Sequence[tuple[str, str]], plans: list[Plan], visits: int,
    steps: int, is_real: bool,
) -> list[Case]:  # fmt: skip
    """All plans in turns, `visits` times with trainers built anew."""
    rows = run_plans(
        box, plans, steps, "overlap_worker.py", is_real, visits=visits, emulate=not is_real
    )
    every = [_medians(row) for row in rows]
    found = []
    for number, ((model, kind), plan) in enumerate(zip(models, plans, strict=True)):
        figures, pairs = stage_figures(plan.stage), []
        for visit in range(visits):
            first = 2 * steps * (visit * len(plans) + number)
            pairs += [every[n] + every[n + 1] for n in range(first, first + 2 * steps, 2)]
        measured_s, _, waiting_s, stalled_s = (
            statistics.median(pair[n] for pair in pairs) for n in range(4)
        )
        cost = figures.cost
        computed = (waiting_s - stalled_s) / cost.compute_s if is_real else 1.0
        found.append(
            Case(
                model=model,
                kind=kind or "searched",
                shape=f"{box.spec.nodes}x{box.spec.gpus_per_node}",
                rate=rate,
                is_real=is_real,
                buckets=len(plan.stage.buckets),
                exchange_s=figures.maker.exchange_s,
                predicted_s=cost.iteration_s,
                predicted_waiting_s=cost.compute_s + cost.communication_s,
                measured_s=measured_s,
                waiting_s=waiting_s,
                at_measured_price_s=_priced(
                    figures.whole, computed, stalled_s / cost.communication_s
                ).end_s,
                samples=[[round(x, 5) for x in pair] for pair in pairs],
            )
        )
    return found


def _medians(row: Sequence[Mapping[str, Sequence[float]]]) -> tuple[float, float]:
    """Of what the hosts saw: seconds of a step, and those that computation waited."""
    return (
        statistics.median(host["seconds"][0] for host in row),
        statistics.median(host["parts"][0] for host in row),
    )


def _priced(step: Step, computed: float, communicated: float) -> Step:
    """With computation, and communication, so many times as long."""
    tasks = tuple(
        replace(
            task, seconds=task.seconds * (computed if task.cause in COMPUTING else communicated)
        )
        for task in step.tasks
    )
    return replace(step, tasks=tasks)


def table(cases: Sequence[Case], about: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "# The exchange of gradients, hidden behind the backward pass",
        "",
        "Seconds of a step by `python -m benchmarks.overlap_box`: measured, predicted and their",
        "ratio, as planned with `overlap=True` and with a wait put in after each bucket of",
        "gradients, in turns (medians). At its price: the step measured against what is predicted",
        "with communication (and real computation) as slow as in the waiting steps. Hidden: the",
        "waiting step less the step, and the share of what the plan's schedule hides.",
        "",
        where_and_when(about),
        "",
        "| model, plan | hosts, links | compute | buckets | step | waiting | at its price "
        "| hidden |",
        "| --- | --- | --- | ---: | --- | --- | --- | --- |",
    ]
    for c in cases:
        fits_s, hidden_s = c.hidden
        share = f"{hidden_s:.3f} of {fits_s:.3f}: {hidden_s / fits_s:.0%}"
        lines.append(
            f"| {c.model}, {c.kind} | {c.shape}, {c.rate} | {'real' if c.is_real else 'emulated'} "
            f"| {c.buckets} | {_beside(c.measured_s, c.predicted_s)} "
            f"| {_beside(c.waiting_s, c.predicted_waiting_s)} "
            f"| {c.measured_s / c.at_measured_price_s:.2f} | {share} |"
        )
    return "\n".join(lines)


def _beside(measured_s: float, predicted_s: float) -> str:
    return f"{measured_s:.3f} / {predicted_s:.3f} ({measured_s / predicted_s:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="4x2")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "400mbit"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--real", action="store_true", help="with real computation instead")
    parser.add_argument("--visits", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recalibrate", action="store_true")
    args = parser.parse_args()
    path = FOLDER / "overlap.json"
    old = json.loads(path.read_text())["cases"] if path.exists() else []
    cases = [Case(**case) for case in old]
    shape, rates = (REAL[2], [REAL[3]]) if args.real else (args.shape, args.rates)
    for rate in rates:
        nodes, gpus = map(int, shape.split("x"))
        with Box(nodes, gpus, rate) as box:
            if args.real:
                model, kind = REAL[:2]
                found = [(model, kind)]
                cluster = calibrated_for(
                    box, rate, args.recalibrate, CALIBRATE.split(), entry_of(model), overlaps=True
                )
                plans = [plan_of(trace_entry(entry_of(model)), cluster, kind)]
            else:
                cluster = calibrated(box, rate, args.recalibrate, CALIBRATE.split())
                found = [(model, MODELS[model]) for model in args.models]
                plans = [balanced(trace_entry(entry_of(m)), cluster, kind) for m, kind in found]
            new = measure(box, rate, *beside(found, plans), args.visits, args.steps, args.real)
        keys = {(c.model, c.shape, c.rate, c.is_real) for c in new}
        cases = [c for c in cases if (c.model, c.shape, c.rate, c.is_real) not in keys] + new
        _write(cases, path)


def _write(cases: list[Case], path: Path) -> None:
    cases.sort(key=lambda c: (c.is_real, c.shape, len(c.rate), c.rate, c.model, c.kind))
    about = machine()
    text = table(cases, about)
    save(path.stem, {"machine": about, "cases": [asdict(c) for c in cases]}, text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
