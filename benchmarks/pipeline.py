"""Step times of pipelines on slow links, measured and simulated: `make bench-pipeline`.

    python -m benchmarks.pipeline [emulated] [real] [--rate 200mbit] [--text]

emulated: four stages of one host x 2 devices, with emulated compute
real:     two stages of one process each, which compute on a core each

Each schedule runs with transfers beside computation, GPipe and 1F1B also in turn with it, and again
with "signals", transfers of one element. Links are fitted to single messages right before
(`box/reshard.py`); real passes are timed on both processes at once, without transfers, after every
run, and their medians over all runs predict each. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.cost.operators import at_rate
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.bytes import LAPTOP
from benchmarks.box.reshard import fitted
from benchmarks.box.results import machine
from benchmarks.box.work import run_pipelines

FOLDER = Path(__file__).parent / "results" / "pipeline"
MICRO_BATCHES = 8
# schedule, overlapped
RUNS = (
    ("gpipe", False),
    ("1f1b", False),
    ("gpipe", True),
    ("1f1b", True),
    ("eager-1f1b", True),
    ("zb-h1", True),
)


@dataclass(frozen=True)
class Setting:
    """A box and a model; `flops_per_s` of the emulated devices, None to compute."""

    name: str
    model: str
    nodes: int
    gpus: int
    flops_per_s: float | None


SETTINGS = (
    Setting("emulated", "chain", 4, 2, 3.6e9),
    Setting("real", "wide_chain", 2, 1, None),
)


def plans_for(setting: Setting, cluster: Cluster) -> dict[str, Plan]:
    """The same stages under each schedule."""
    graph = trace_entry(f"benchmarks.box.models:{setting.model}")
    found = find_plan(
        graph,
        cluster,
        PlanOptions(
            overlap=False,
            stages=setting.nodes,
            schedule="1f1b",
            optimizer="sgd",
            micro_batches=MICRO_BATCHES,
        ),
    )
    return {name: found.under(name) for name, _ in RUNS}


def measure(setting: Setting, rate: str, repeats: int) -> dict[str, Any]:
    """All runs of a setting, with what the simulator says of each."""
    cluster = Cluster.load(LAPTOP).with_shape(
        nodes=setting.nodes, gpus_per_node=max(setting.gpus, 2)
    )
    if setting.flops_per_s:
        cluster = replace(cluster, device=at_rate(cluster.device, setting.flops_per_s))
    with Box(setting.nodes, cluster.gpus_per_node, rate) as box:
        cluster, _ = fitted(box, cluster)
    cluster = cluster.with_shape(nodes=setting.nodes, gpus_per_node=setting.gpus)
    plans = plans_for(setting, cluster)
    emulate = setting.flops_per_s is not None
    runs = [
        {"plan": name, "overlap": overlap, "signal": signal, "emulate": emulate}
        for name, overlap in RUNS
        for signal in (False, True)
    ]
    with Box(setting.nodes, setting.gpus, rate) as box:
        readings = run_pipelines(box, runs, plans, repeats)
    rows = []
    for number, run in enumerate(runs):
        turns = readings[number :: len(runs)]
        samples = [max(h["seconds"][0] for h in hosts) for hosts in turns]
        plan = plans[run["plan"]]
        costs = (
            figures(plan).pass_costs if emulate else with_passes(figures(plan).pass_costs, readings)
        )
        if run["signal"]:
            latency = cluster.inter.transfer_latency_s
            short = dict.fromkeys(costs.activation, latency)
            costs = replace(costs, activation=short, gradient=short)
        rows.append(
            {
                **run,
                "pass_s": [costs.forward, costs.backward, costs.weight],
                "predicted_s": predicted(plan, costs, run["overlap"], emulate),
                "measured_s": statistics.median(samples),
                "samples_s": samples,
            }
        )
    plan = plans["1f1b"]
    return {
        "setting": setting.name,
        "emulated": emulate,
        "rate": rate,
        "stages": len(plan.stages),
        "micro_batches": MICRO_BATCHES,
        "transfer_s": [
            figures(plan).pass_costs.activation[f]
            for f in sorted(figures(plan).pass_costs.activation)
        ],
        "machine": machine(),
        "rows": rows,
    }


def with_passes(costs: Costs, readings: list[list[dict[str, Any]]]) -> Costs:
    """`costs` with the passes that the hosts have timed after each of the runs."""
    forward, backward = (
        tuple(
            statistics.median(h[name] for h in of_host) for of_host in zip(*readings, strict=True)
        )
        for name in ("forward_s", "backward_s")
    )
    halves = tuple(seconds / 2 for seconds in backward)
    return replace(costs, forward=forward, backward=halves, weight=halves)


def predicted(plan: Plan, costs: Costs, overlap: bool, with_once: bool) -> float:
    """The simulated iteration; real passes leave out what happens once."""
    timeline = simulate(figures(plan).schedule, costs, overlap)
    ends = [0.0] * plan.num_stages
    for span in timeline.spans:
        ends[span.stage] = max(ends[span.stage], span.end_s)
    once = [stage_figures(stage).price.once_s if with_once else 0.0 for stage in plan.stages]
    return max(end + y for end, y in zip(ends, once, strict=True))


ABOUT = (
    "With transfers beside computation 1F1B is slower than GPipe, measured and simulated alike: a "
    "property of the schedule. Its first of s stages holds s micro-batches, whose way to the last "
    "stage and back takes s passes and 2 (s - 1) transfers of x seconds, so it starts one every "
    "t + 2 x (s - 1) / s seconds, where GPipe and eager-1F1B start one every t seconds: with m "
    "micro-batches 2 x (m (s - 1) / s - 1) seconds more (test_simulate.py holds the "
    "simulator to that). 1F1B saves memory, s instead of m micro-batches on the first stage; "
    "eager-1F1B has GPipe's time with 2 s - 1. In turn with computation, where nothing is hidden, "
    "1F1B is the faster one of many stages, and of two as fast as GPipe. So eager-1F1B beside "
    "computation, 1F1B in turn and GPipe in turn, as each is usually run, are in this order.\n\n"
    "Real ranks have a core each: OneFlow computes there on a thread beside the one that schedules "
    "and transfers. On one thread transfers held computation up (eager-1F1B took 3.1 s instead of "
    "1.6 s), and ranks that shared the cores computed on one at times (1.7 to 2.4 s). Transfers "
    "take some of the cores' time, too: with half as many layers at twice the rate, for which the "
    "simulator says the same ratio, eager-1F1B took 1.17 times its run with signals. Emulated "
    "ranks have one thread for everything: they see a message arrive in the memory that it is "
    "written to, as an answer of OneFlow's waits for the next transfer too, and no transfer is "
    "issued before a pass in which the stage communicates (the loss), as its collective would "
    "wait for the transfer's sender. Before that, eager-1F1B took 1.236 times its run with signals."
)


def markdown(results: list[dict[str, Any]]) -> str:
    lines = ["# Step times of pipelines on slow links", "", ABOUT, ""]
    for result in results:
        about = result["machine"]
        compute = "emulated compute" if result["emulated"] else "real computation"
        forward, backward, weight = result["rows"][0]["pass_s"]
        lines += [
            f"## {result['stages']} stages, {compute}",
            "",
            f"Links of {result['rate']}, {result['micro_batches']} micro-batches; a micro-batch's "
            f"forward pass takes {1e3 * max(forward):.0f} ms on the slowest stage, its backward "
            f"pass {1e3 * (max(backward) + max(weight)):.0f} ms, a transfer "
            f"{1e3 * max(result['transfer_s']):.0f} ms ({about['processor']}, {about['cores']} "
            f"cores, load average {about['load_average']}, {about['date']}). Seconds of a step, "
            "simulated and measured; signals: with transfers of one element.",
            "",
            _whether_hidden(result),
            "",
            "| schedule | transfers | simulated | measured | error | signals, simulated "
            "| signals, measured | measured / signals |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        rows = {(r["plan"], r["overlap"], r["signal"]): r for r in result["rows"]}
        for name, overlap in RUNS:
            whole, signal = rows[name, overlap, False], rows[name, overlap, True]
            error = whole["predicted_s"] / whole["measured_s"] - 1
            lines.append(
                f"| {name} | {'beside' if overlap else 'in turn'} | {whole['predicted_s']:.3f} "
                f"| {whole['measured_s']:.3f} | {error:+.1%} | {signal['predicted_s']:.3f} "
                f"| {signal['measured_s']:.3f} "
                f"| {whole['measured_s'] / signal['measured_s']:.3f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _whether_hidden(result: dict[str, Any]) -> str:
    """The condition under which computation hides transfers, from the schedule's numbers."""
    compute_s = max(map(sum, zip(*result["rows"][0]["pass_s"], strict=True)))
    stages, between = result["stages"], [0.0, *result["transfer_s"], 0.0]
    # activations and gradients, as large, to and from both neighbours
    queue_s = max(2 * (before + after) for before, after in itertools.pairwise(between))
    way_s = 2 * (stages - 1) * max(result["transfer_s"])
    whole_s = (result["micro_batches"] + stages - 1) * compute_s
    return (
        f"Computation suffices to hide transfers where a stage's queue of them is no longer than "
        f"what it computes, here {1e3 * queue_s:.0f} ms and {1e3 * compute_s:.0f} ms a micro-batch "
        f"({'it does' if queue_s <= compute_s else 'it does not'}), but for the way of the first "
        f"micro-batch to the last stage and back, 2 (s - 1) transfers: {1e3 * way_s:.0f} ms, "
        f"{way_s / whole_s:.1%} of the (m + s - 1) micro-batches' computation on the way."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", default=[s.name for s in SETTINGS])
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--text", action="store_true", help="of the readings that are there")
    args = parser.parse_args()
    path = FOLDER / "steps.json"
    old = json.loads(path.read_text()) if path.exists() else []
    results = {r["setting"]: r for r in old}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for setting in SETTINGS:
        if setting.name in args.what:
            if not args.text:
                results[setting.name] = measure(setting, args.rate, args.repeats)
            found = [results[s.name] for s in SETTINGS if s.name in results]
            write_atomically(path, json.dumps(found, indent=1))
            write_atomically(FOLDER / "steps.md", markdown(found))
    print(markdown(list(results.values())))


if __name__ == "__main__":
    main()
