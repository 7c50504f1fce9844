"""Our plan on PyTorch against PyTorch's own ways, measured: `make bench-race-torch`.

    python -m benchmarks.torch_race [--models mlp gpt llama resnet] [--rates 100mbit 400mbit free]
                                    [--rounds 5] [--recalibrate] [--report]

On 2 hosts of 2 processes, a box of network namespaces with shaped links, all train the same model
in turns, with real computation over gloo: DistributedDataParallel, FSDP2 (`fully_shard` of each
block), DTensor's tensor parallelism by the usual Megatron plan on all devices, and in hosts with
FSDP2 across; our plan, and known schemes as plans of ours. Ours is planned with overlap or without,
whichever is predicted to be faster, at the prices of the box as `autoddl calibrate --back-end
torch` has measured it. Needs root. Cases that are not run keep their old results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoddl.cluster import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import each_baseline
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.runtime.framework import framework
from autoddl.tools.box import Box
from benchmarks.box.machines import calibrated_for
from benchmarks.box.results import FOLDER, machine, save, where_and_when
from benchmarks.box.torch_models import MODELS
from benchmarks.box.work import ENV

HOSTS, EACH = 2, 2
RATES = ("100mbit", "400mbit", "free")
OURS = "autoddl"
KNOWN = ("data parallel", "Megatron", "Megatron+ZeRO")
CALIBRATE = "--max-bytes 4194304 --repeats 7 --budget 120 --no-point-to-point"
NOISE, PROMISED = 0.03, 1.2
LOSSES = 1e-5  # how far, relatively, racers' losses may be apart


@dataclass(frozen=True)
class Racer:
    """One way to train. predicted_s: of our plans; PyTorch's own ways take others' bytes."""

    name: str
    predicted_s: float | None
    sent_bytes: float
    samples_s: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(self.samples_s)


@dataclass(frozen=True)
class Case:
    """All racers of one model in one box; ours is the first.

    about: the machine and the day
    """

    model: str
    rate: str
    racers: tuple[Racer, ...]
    about: Mapping[str, Any]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Case:
        lists = ("samples_s", "losses")
        racers = ({**r, **{key: tuple(r[key]) for key in lists}} for r in data["racers"])
        return Case(data["model"], data["rate"], tuple(Racer(**r) for r in racers), data["about"])

    @property
    def rivals(self) -> tuple[Racer, ...]:
        """PyTorch's own."""
        return tuple(r for r in self.racers if r.predicted_s is None)

    @property
    def apart(self) -> float:
        """The largest relative difference of two racers' losses."""
        steps = zip(*(racer.losses for racer in self.racers), strict=True)
        return max((max(step) - min(step)) / abs(min(step)) for step in steps)

    def error(self, racer: Racer) -> float | None:
        """Of the predicted ratio to our plan's seconds."""
        ours = self.racers[0]
        if racer.predicted_s is None or ours.predicted_s is None:
            return None
        return (racer.predicted_s / ours.predicted_s) / (racer.seconds / ours.seconds) - 1


def plans_of(graph: Graph, cluster: Cluster) -> dict[str, Plan]:
    """Ours, with overlap or without, and the known schemes, overlapped."""
    both = [
        PlanOptions(
            optimizer="momentum", micro_batches=1, back_end="torch", batch_norm="shard",
            overlap=overlap,
        )
        for overlap in (False, True)
    ]  # fmt: skip
    ours = min((find_plan(graph, cluster, o) for o in both), key=lambda p: figures(p).iteration_s)
    found = {r.name: plan for r, plan in each_baseline(graph, cluster, both[1]) if plan}
    # tensor parallelism would take a BatchNorm's statistics of other rows
    known = KNOWN[:1] if any(op.kind == "normalization" for op in graph.ops) else KNOWN
    return {OURS: ours, **{name: found[name] for name in known if name in found}}


def race(box: Box, name: str, rate: str, plans: dict[str, Plan], visits: int, rounds: int) -> Case:
    with tempfile.TemporaryDirectory(prefix="autoddl-box-") as folder:
        files = {title: f"plan{n}.json" for n, title in enumerate(plans)}
        for title, plan in plans.items():
            plan.save(Path(folder) / files[title])
        work = {"plans": files, "visits": visits, "rounds": rounds}
        (Path(folder) / "work.json").write_text(json.dumps(work))
        worker = ["-m", "benchmarks.box.torch_race_worker", folder, name, str(HOSTS), str(EACH)]
        status = box.run(worker, ENV, output=sys.stderr)
        if status:
            raise RuntimeError(f"the race ended with status {status}")
        ranks = [
            json.loads((Path(folder) / f"rank{n}.json").read_text()) for n in range(HOSTS * EACH)
        ]
    predicted = {title: figures(plan).iteration_s for title, plan in plans.items()}
    racers = []
    for title in ranks[0]:
        own = [rank[title] for rank in ranks]
        samples, losses = (
            zip(*(of[key] for of in own), strict=True) for key in ("seconds", "losses")
        )
        racers.append(
            Racer(
                title,
                predicted.get(title),
                max(of["sent_bytes"] for of in own),
                tuple(statistics.median(of) for of in samples),
                tuple(statistics.fmean(of) for of in losses),
            )
        )
    return Case(name, rate, tuple(racers), machine())


def table(cases: Sequence[Case]) -> str:
    lines = [
        "# Our plan on PyTorch against PyTorch's own ways, measured in the box",
        "",
        f"{HOSTS} hosts of {EACH} processes of one thread each, over gloo, with real computation.",
        "Seconds of a step: the median of rounds in which all take turns, with the least and the",
        "most. What has a prediction is a plan of ours.",
    ]
    for case in cases:
        ours = case.racers[0]
        lines += [
            "",
            f"## {case.model}, {case.rate}",
            "",
            where_and_when(case.about),
            "",
            "| | seconds | to ours | predicted s | predicted to ours | error | MB on a link |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for racer in sorted(case.racers, key=lambda r: r.seconds):
            low, high, error = min(racer.samples_s), max(racer.samples_s), case.error(racer)
            told = "| | |"
            if error is not None and racer.predicted_s and ours.predicted_s:
                ratio = racer.predicted_s / ours.predicted_s
                told = f"| {racer.predicted_s:.3f} | {ratio:.2f} | {error:+.0%}"
            lines.append(
                f"| {racer.name} | {racer.seconds:.3f} ({low:.3f} to {high:.3f}) "
                f"| {racer.seconds / ours.seconds:.2f} {told} | {racer.sent_bytes / 1e6:.1f} |"
            )
        lines += ["", sentence(case)]
    return "\n".join(lines)


def sentence(case: Case) -> str:
    ours, best = case.racers[0], min(case.rivals, key=lambda r: r.seconds)
    faster = best.seconds / ours.seconds
    text = f"Against the fastest of PyTorch's own, {best.name}: {faster:.2f} times as fast"
    if faster < 1 - NOISE:
        text += f", **behind by more than {NOISE:.0%}**"
    told = [r.predicted_s for r in case.racers[1:] if r.predicted_s is not None]
    if told and ours.predicted_s is not None:
        promised = min(told) / ours.predicted_s
        missed = promised >= PROMISED > faster
        text += f"; promised {promised:.2f}" + ", **missed**" * missed
    same = "equal" if case.apart <= LOSSES else "**not equal**"
    return f"{text}. Losses are {same}, {case.apart:.0e} apart."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rates", nargs="+", choices=RATES, default=RATES)
    parser.add_argument("--visits", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--report", action="store_true", help="only write what is there")
    args = parser.parse_args()
    path, found = FOLDER / "race_torch.json", dict[tuple[str, str], Case]()
    if path.exists():
        for (case,) in json.loads(path.read_text())["cases"].values():
            known = Case.from_json(case)
            found[known.model, known.rate] = known
    for rate in [] if args.report else args.rates:
        with Box(HOSTS, EACH, None if rate == "free" else rate) as box:
            for number, name in enumerate(args.models):
                entry = f"benchmarks.box.torch_models:{name}"
                cluster = calibrated_for(
                    box, rate, args.recalibrate and not number, CALIBRATE.split(), entry,
                    back_end="torch",
                )  # fmt: skip
                graph = framework("torch", "the race").trace_entry(entry)
                plans = plans_of(graph, cluster)
                found[name, rate] = race(box, name, rate, plans, args.visits, args.rounds)
                _write(found)
    _write(found)


def _write(found: Mapping[tuple[str, str], Case]) -> None:
    order = sorted(found.values(), key=lambda c: (list(MODELS).index(c.model), c.rate))
    cases = {f"{c.model}, {c.rate}": [asdict(c)] for c in order}
    text = table(order)
    save("race_torch", {"cases": cases}, text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
