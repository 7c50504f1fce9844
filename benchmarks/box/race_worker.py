"""One rank: trains by several plans in turns, and notes each one's bytes and seconds of a step.

Arguments: folder (plans.json there: plan files, visits, repeats, whether to emulate computation).
At each visit all plans are set up anew, so that what differs between two set-ups, like the measured
cost of emulation, is no plan's own. Readings: the bytes of a step of each plan, then, round by
round, its seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.entries import optimizer_maker, to_tensors
from autoddl.runtime.oneflow.trace.from_graph import made_up_example, made_up_model
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.tools.synthetic import synthetic_batches
from benchmarks.box.meter import Meter


def main(folder: str) -> None:
    install_guard()
    work = json.loads((Path(folder) / "plans.json").read_text())
    plans = [Plan.load(Path(folder) / file) for file in work["plans"]]
    meter = Meter(Groups(plans[0].stage.mesh, rank(), OneFlow()))
    for visit in range(work["visits"]):
        racers = [_racer(plan, work["emulate"]) for plan in plans]
        for step, _ in racers:
            step()  # warm-up
            if visit == 0:
                meter.bytes_of(step)
        for _ in range(work["repeats"]):
            for step, communicated_s in racers:
                meter.seconds_of(step, 1, communicated_s)
    meter.save(folder)


def _racer(plan: Plan, emulate: bool) -> tuple[Callable[[], object], Callable[[], float]]:
    """(a training step, seconds that the last one spent on communication; 0 unless emulated)."""
    trainer = build_trainer(
        made_up_model(plan.graph, plan.seed),
        plan,
        optimizer_maker(plan.optimizer, 1e-4),
        emulate=emulate,
    )
    (batch,) = synthetic_batches(made_up_example(plan), plan.graph, 1, plan.seed)
    tensors = to_tensors(batch)
    emulator = trainer.emulator
    communicated_s = (lambda: emulator.clock.stalled_s) if emulator else (lambda: 0.0)
    return lambda: trainer.step(*tensors).numpy(), communicated_s


main(sys.argv[1])
