"""Predicted against measured time of plans, in a box: `make bench-truth`.

    python -m benchmarks.truth [--rates 100mbit 400mbit] [--models mlp gpt vgg] [--plans 30]

For each rate `autoddl calibrate` measures the box; then training steps by plans of each model are
timed with emulated compute (8 processes on few cores cannot compute at once) and compared with what
the cost model says by the calibrated links, with the paper's plain rule and with the shared NIC.
Needs root. Results go to benchmarks/results/box/truth.*; rates and models that are not asked for
keep their old ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from autoddl.cluster import Cluster
from autoddl.cost.operators import at_rate
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated
from benchmarks.box.plan_set import Named, load_set, plan_set, save_set
from benchmarks.box.results import FOLDER, machine, save
from benchmarks.box.truth_report import RULES, Measured, draw, numbers, table
from benchmarks.box.work import run_plans

NODES, GPUS = 4, 2
MODELS = ("mlp", "gpt", "vgg")
FLOPS_PER_S = 1e9  # of the emulated device
NOTE = f"box of {NODES} x {GPUS}, emulated compute of {FLOPS_PER_S:g} FLOP/s a device"


def plans_for(model: str, cluster: Cluster, count: int, folder: Path) -> list[Named]:
    """Plans at the prices of `cluster`; those that do not depend on them are kept in `folder`."""
    cluster = replace(cluster, device=at_rate(cluster.device, FLOPS_PER_S))
    graph = trace_entry(f"benchmarks.box.models:{model}")
    plans = plan_set(graph, cluster, count, load_set(folder / model))
    save_set(plans, folder / model)
    return plans


def measure(
    box: Box, model: str, rate: str, plans: list[Named], visits: int, steps: int
) -> list[Measured]:
    """`visits` times all of `plans` in turns, `steps` training steps each.

    A sample is the median of one visit, for which the trainer is built anew: what differs from one
    to the next, like the measured cost of emulation, then differs between a plan's samples.
    """
    order = [plan for _, plan in plans] * visits
    rows = run_plans(box, order, steps, measure="seconds")
    found = []
    for number, (name, plan) in enumerate(plans):
        comm, step = (
            tuple(_median_of(row, what) for row in rows[number :: len(plans)])
            for what in ("parts", "seconds")
        )
        predicted = {rule: priced(plan, rule) for rule in RULES}
        found.append(
            Measured(
                model,
                rate,
                name,
                statistics.median(comm),
                statistics.median(step),
                figures(plan).cost.compute_s,
                predicted,
                comm,
                step,
            )
        )
    return found


def _median_of(hosts: Sequence[Mapping[str, Sequence[float]]], what: str) -> float:
    """Of the steps of one visit, each the median of what the hosts saw."""
    return statistics.median(map(statistics.median, zip(*(h[what] for h in hosts), strict=True)))


def priced(plan: Plan, rule: str) -> float:
    """Seconds of communication of a step by a rule."""
    return figures(plan.changed(comm_rule=rule)).cost.communication_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "400mbit"])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--visits", type=int, default=3, help="times that all plans take turns")
    parser.add_argument("--steps", type=int, default=3, help="steps timed at a visit")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the plans here for another run")
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--report", action="store_true", help="only draw what is there")
    parser.add_argument(
        "--calibrate", default="--max-bytes 4194304 --repeats 7 --budget 460 --no-point-to-point"
    )
    args = parser.parse_args()
    path = FOLDER / "truth.json"
    cases = _load(path)
    if args.report:
        _write(cases, path)
        return
    with (
        tempfile.TemporaryDirectory(prefix="autoddl-plans-") as temporary,
        Box(NODES, GPUS, args.rates[0]) as box,
    ):
        folder = Path(args.keep or temporary)
        for rate in args.rates:
            box.set_rate(rate)
            cluster = calibrated(box, rate, args.recalibrate, args.calibrate.split())
            for model in args.models:
                plans = plans_for(model, cluster, args.plans, folder)
                found = measure(box, model, rate, plans, args.visits, args.steps)
                cases = [c for c in cases if (c.model, c.rate) != (model, rate)] + found
                _write(cases, path)


def _load(path: Path) -> list[Measured]:
    if not path.exists():
        return []
    return [Measured(**case) for case in json.loads(path.read_text())["cases"]]


def _write(cases: list[Measured], path: Path) -> None:
    cases = sorted(cases, key=lambda c: (len(c.rate), c.rate, MODELS.index(c.model)))
    about = {**machine(), "note": NOTE}
    text = table(cases, about)
    found = {"machine": about, "figures": numbers(cases), "cases": [asdict(c) for c in cases]}
    save("truth", found, text)
    draw(cases, path.with_suffix(".png"))
    print(text, flush=True)


if __name__ == "__main__":
    main()
