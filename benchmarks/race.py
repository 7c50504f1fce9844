"""Our plan against every baseline, measured: `make bench-box`.

    python -m benchmarks.race [--shapes 4x2 2x4] [--rates 100mbit 400mbit] [--models vgg gpt]
                              [--only TEXT]

In a box of hosts with shaped links, training steps of all plans of a model take turns; medians and
spreads of their seconds, and the bytes on the links, are set beside the model's predictions. With
8 processes on few cores computation is emulated, at a rate that gives a well-known scheme the
balance of communication to computation that it has at the paper's scale (`BALANCE`); the dense
layers of `GAP`, of which the model promises more, as much of the one as of the other. One case runs
with real computation, planned for the model's operators as timed on all processes at once, which
share the cores; one on 8 x 2. Needs root. Cases that are not run keep their old results.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from autoddl.cluster import Cluster
from autoddl.cost.operators import at_rate
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import Chosen
from autoddl.planner.options import PlanOptions
from autoddl.plans.figures import figures
from autoddl.runtime.oneflow.rival.choice import ask_oneflow
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.sbp.mesh import Mesh
from autoddl.tools.box import Box
from autoddl.tools.compare import OURS, Scheme, compare
from benchmarks.box.machines import calibrated, calibrated_for
from benchmarks.box.race_report import Case, Racer, draw, table
from benchmarks.box.results import FOLDER, machine, save
from benchmarks.box.work import run_plans

SHAPES = ("4x2", "2x4")
RATES = ("100mbit", "400mbit")
MODELS = ("vgg", "gpt")
LARGE = ("8x2", "100mbit")  # more devices, at the prices of 4x2
REAL = ("4x2", "400mbit")
GAP = ("mlp", "4x2", "100mbit")
VISITS, ROUNDS = 3, 2  # set-ups of all plans, and rounds of steps after each
RIVAL_SECONDS = 120.0
OPTIMIZER = "sgd"
PAPER = Path(__file__).parent / "results" / "paper"
EVEN = 0.5
# model -> (result of `make bench-paper`, scheme whose share of communication is taken from there)
BALANCE = {"vgg": ("vgg13_16_nodes", "data parallel"), "gpt": ("gpt_6_8b_64_nodes", "Megatron")}


def wanted_share(model: str) -> tuple[str, float]:
    """A scheme and the share of communication that it shall have in an iteration.

    That at the paper's scale, as our model prices it, where `BALANCE` names one.
    """
    if model not in BALANCE:
        return "Megatron", EVEN
    name, scheme = BALANCE[model]
    _, iteration_s, communication_s, _ = json.loads((PAPER / f"{name}.json").read_text())[
        "schemes"
    ][scheme]
    return scheme, communication_s / iteration_s


def balanced(cluster: Cluster, model: str) -> Cluster:
    """`cluster` with devices of the FLOP rate that gives the scheme its share at the paper's scale.

    Computation is all arithmetic then: memory is as fast and starts are as quick as no real ones.
    """
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e15, launch_s=0.0)
    rate = 1e9
    name, share = wanted_share(model)
    for _ in range(3):  # the scheme's best topology may change with the rate
        cluster = replace(cluster, device=at_rate(device, rate))
        schemes = compare(graph_of(model), cluster, PlanOptions(optimizer=OPTIMIZER)).schemes
        plan = next(s.plan for s in schemes if s.name == name)
        assert plan is not None, "small models fit by every scheme"
        wanted_s = figures(plan).cost.communication_s * (1 - share) / share
        rate *= figures(plan).cost.compute_s / wanted_s
    return replace(cluster, device=at_rate(device, rate))


@lru_cache(maxsize=4)
def graph_of(model: str) -> Graph:
    return trace_entry(entry_of(model))


def entry_of(model: str) -> str:
    return f"benchmarks.box.models:{model}"


@lru_cache(maxsize=8)
def rival_choice(model: str, mesh: Mesh) -> Chosen | str:
    """What OneFlow's own planner chooses, whatever the links, or why there is nothing."""
    try:
        return ask_oneflow(graph_of(model), mesh, OPTIMIZER, RIVAL_SECONDS)
    except ValueError as error:
        return str(error)


def schemes_of(model: str, cluster: Cluster) -> list[Scheme]:
    """Ours first; of schemes that come to the same plan, the first."""
    found: dict[str, Scheme] = {}
    rival = rival_choice(model, cluster.mesh)
    for scheme in compare(
        graph_of(model), cluster, PlanOptions(optimizer=OPTIMIZER), rival=rival
    ).schemes:
        plan = scheme.plan
        if plan is None:
            print(f"  {scheme.name}: {scheme.why}", flush=True)
            continue
        same = repr(
            (sorted(plan.stage.ops.items()), sorted(plan.stage.edges.items()), plan.micro_batches)
        )
        if same in found:
            known = found[same]
            found[same] = replace(known, name=f"{known.name} = {scheme.name}")
        else:
            found[same] = scheme
    return list(found.values())


def race(box: Box, label: str, model: str, cluster: Cluster, emulate: bool) -> Case:
    """All schemes of one model in turns."""
    schemes = schemes_of(model, cluster)
    plans = [scheme.plan for scheme in schemes if scheme.plan is not None]
    visits = VISITS if box.spec.size <= 8 else VISITS - 1  # a step of many processes takes long
    readings = run_plans(box, plans, ROUNDS, "race_worker.py", emulate=emulate, visits=visits)
    carried, rounds = readings[: len(plans)], readings[len(plans) :]
    racers = []
    for number, (scheme, plan) in enumerate(zip(schemes, plans, strict=True)):
        samples = tuple(
            statistics.median(host["seconds"][0] for host in row)
            for row in rounds[number :: len(plans)]
        )
        racers.append(
            Racer(
                name=scheme.name,
                topology=scheme.topology,
                predicted_s=figures(plan).cost.iteration_s,
                predicted_comm_s=figures(plan).cost.communication_s,
                predicted_nic_bytes=figures(plan).cost.nic_bytes.total,
                link_bytes=max(host["sent_bytes"] for host in carried[number]),
                samples_s=samples,
            )
        )
    assert OURS in racers[0].name, "ours comes first"
    return Case(label, emulate, tuple(racers))


def cases(args: argparse.Namespace) -> list[tuple[str, str, str, bool]]:
    """(model, shape, rate, emulated) of all races."""
    wanted = [
        (model, shape, rate, True)
        for shape in args.shapes
        for rate in args.rates
        for model in args.models
    ]
    if not args.no_extra:
        wanted += [(model, *REAL, False) for model in args.models]
        wanted += [(model, *LARGE, True) for model in args.models]
        wanted.append((*GAP, True))
    return [case for case in wanted if args.only in label_of(*case)]


def label_of(model: str, shape: str, rate: str, emulate: bool) -> str:
    return f"{model}, {shape}, {rate}" + ("" if emulate else ", real computation")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--only", default="", help="run the cases with this in their labels")
    parser.add_argument("--no-extra", action="store_true", help="no 8 x 2, no real computation")
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--report", action="store_true", help="only draw what is there")
    parser.add_argument(
        "--calibrate", default="--max-bytes 4194304 --repeats 5 --budget 260 --no-point-to-point"
    )
    args = parser.parse_args()
    path = FOLDER / "race.json"
    found = _load(path)
    if args.report:
        _write(found, path)
        return
    fresh = {(shape, rate) for _, shape, rate, _ in cases(args) if args.recalibrate}
    for model, shape, rate, emulate in cases(args):
        nodes, gpus = map(int, shape.split("x"))
        label = label_of(model, shape, rate, emulate)
        print(label, flush=True)
        with Box(nodes, gpus, rate) as box:
            if shape == LARGE[0]:
                cluster = Cluster.load(FOLDER / f"machine_4x2_{rate}.json")
                cluster = cluster.with_shape(nodes=nodes, gpus_per_node=gpus)
            else:
                again, options = (shape, rate) in fresh, args.calibrate.split()
                cluster = (
                    calibrated(box, rate, again, options)
                    if emulate
                    else calibrated_for(box, rate, again, options, entry_of(model))
                )
                fresh.discard((shape, rate))
            if emulate:
                cluster = balanced(cluster, model)
            found[label] = race(box, label, model, cluster, emulate)
        _write(found, path)


def _load(path: Path) -> dict[str, Case]:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())["cases"]
    return {label: Case.from_json(case) for label, (case,) in stored.items()}


def _write(found: dict[str, Case], path: Path) -> None:
    about = machine()
    text = table(list(found.values()), about)
    save(
        "race",
        {"machine": about, "cases": {label: [asdict(case)] for label, case in found.items()}},
        text,
    )
    draw(list(found.values()), path.with_suffix(".png"))
    print(text, flush=True)


if __name__ == "__main__":
    main()
