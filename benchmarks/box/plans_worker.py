"""One rank: trains by each plan of a list, and notes a step's bytes or seconds.

Arguments: folder (plans.json there: plan files, "bytes" or "seconds", repeats). Seconds, of the
step and of its communication, are those of emulated compute at the rate of the plan's cluster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.entries import optimizer_maker, to_tensors
from autoddl.runtime.oneflow.trace.from_graph import made_up_example, made_up_model
from autoddl.runtime.oneflow.trainer import Trainer, build_trainer
from autoddl.tools.synthetic import synthetic_batches
from benchmarks.box.meter import Meter


def main(folder: str) -> None:
    install_guard()
    work = json.loads((Path(folder) / "plans.json").read_text())
    meter: Meter | None = None
    for file in work["plans"]:
        plan = Plan.load(Path(folder) / file)
        meter = meter or Meter(Groups(plan.stage.mesh, rank(), OneFlow()))
        trainer = build_trainer(
            made_up_model(plan.graph, plan.seed),
            plan,
            optimizer_maker("sgd", 1e-4),
            emulate=work["measure"] == "seconds",
        )
        (batch,) = synthetic_batches(made_up_example(plan), plan.graph, 1, plan.seed)
        _measure(meter, trainer, batch, work)
    assert meter is not None, "a list of plans is not empty"
    meter.save(folder)


def _measure(
    meter: Meter, trainer: Trainer, batch: tuple[np.ndarray, ...], work: dict[str, object]
) -> None:
    tensors = to_tensors(batch)
    trainer.step(*tensors).numpy()  # warm-up
    repeats = int(str(work["repeats"]))
    emulator = trainer.emulator
    if emulator is None:
        meter.bytes_of(lambda: trainer.step(*tensors).numpy(), repeats)
    else:
        meter.seconds_of(
            lambda: trainer.step(*tensors).numpy(),
            repeats,
            lambda: emulator.clock.stalled_s,
        )


main(sys.argv[1])
