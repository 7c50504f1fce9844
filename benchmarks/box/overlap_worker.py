"""One rank: trains by each plan of a list in turns, overlapped and with waits put in.

Arguments: folder (plans.json there: plan files, repeats, "visits", "emulate"). Notes for each plan
the seconds of steps as planned, and of steps in which each bucket of gradients is waited for as
soon as it has left: what travels is the same, and nothing of it beside computation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.execution.buckets import Bucket
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.entries import optimizer_maker, to_tensors
from autoddl.runtime.oneflow.trace.from_graph import made_up_example, made_up_model
from autoddl.runtime.oneflow.trainer import Trainer, build_trainer
from autoddl.tools.synthetic import synthetic_batches
from benchmarks.box.meter import Meter

BRING = Bucket.bring


def main(folder: str) -> None:
    install_guard()
    work = json.loads((Path(folder) / "plans.json").read_text())
    plans = [Plan.load(Path(folder) / file) for file in work["plans"]]
    meter = Meter(Groups(plans[0].stage.mesh, rank(), OneFlow()))
    for _ in range(work["visits"]):
        for plan in plans:
            waiting = Waiting(_trainer(plan, work["emulate"]))
            step = _step(waiting.trainer, plan)
            step()  # warm-up
            for _ in range(work["repeats"]):
                for bring in (BRING, waiting.bring):
                    Bucket.bring = bring
                    meter.seconds_of(step, 1, waiting.seconds)
    meter.save(folder)


def _trainer(plan: Plan, emulate: bool) -> Trainer:
    model, optimizer = made_up_model(plan.graph, plan.seed), optimizer_maker(plan.optimizer, 1e-4)
    return build_trainer(model, plan, optimizer, emulate=emulate)


def _step(trainer: Trainer, plan: Plan) -> Callable[[], object]:
    (batch,) = synthetic_batches(made_up_example(plan), plan.graph, 1, plan.seed)
    tensors = to_tensors(batch)
    return lambda: trainer.step(*tensors).numpy()


@dataclass
class Waiting:
    """Buckets that are waited for: for all computation before they leave, and until they arrive."""

    trainer: Trainer
    waited_s: float = 0.0

    @property
    def bring(self) -> Any:
        def run(bucket: Bucket, gradients: list[Any]) -> list[Any]:
            if (emulator := self.trainer.emulator) is not None:
                brought = BRING(bucket, gradients)
                assert emulator.clock.last is not None, "a bucket travels"
                emulator.clock.wait_for(emulator.clock.last)
                return brought
            bucket.backend.wait()
            began = time.perf_counter()
            brought = BRING(bucket, gradients)
            bucket.backend.wait()
            self.waited_s += time.perf_counter() - began
            return brought

        return run

    def seconds(self) -> float:
        """Of the last step, those in which computation waited; of real ones, for buckets."""
        waited_s, self.waited_s = self.waited_s, 0.0
        emulator = self.trainer.emulator
        return waited_s if emulator is None else emulator.clock.stalled_s


main(sys.argv[1])
