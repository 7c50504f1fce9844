"""One rank: times training steps of plans with stages.

Arguments: folder (runs.json there: repeats, and runs of "plan", a file's name, "emulate",
"overlap" and "signal"). The runs take turns, a step each, so that what disturbs the machine for a
while disturbs all alike. A run that computes also notes this stage's seconds of a pass, forward and
backward, with nothing to wait for.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import oneflow as flow

from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.entries import optimizer_maker, to_tensors
from autoddl.runtime.oneflow.trace.from_graph import made_up_example, made_up_model
from autoddl.runtime.oneflow.trainer import Trainer, build_trainer
from autoddl.tools.synthetic import synthetic_batches
from benchmarks.box.meter import Meter

PASSES = 3


def main(folder: str) -> None:
    install_guard()
    work = json.loads((Path(folder) / "runs.json").read_text())
    meter: Meter | None = None
    runs: list[tuple[Trainer, list[Any], bool]] = []
    for run in work["runs"]:
        plan = Plan.from_json(json.loads((Path(folder) / f"{run['plan']}.json").read_text()))
        meter = meter or Meter(Groups(plan.cluster.mesh, rank(), OneFlow()))
        trainer = build_trainer(
            made_up_model(plan.graph, 0), plan, optimizer_maker("sgd", 1e-4),
            overlap=run["overlap"], emulate=run["emulate"], signal=run["signal"],
        )  # fmt: skip
        (batch,) = synthetic_batches(made_up_example(plan), plan.graph, 1, 0)
        tensors = to_tensors(batch)
        trainer.step(*tensors).numpy()  # warm-up
        runs.append((trainer, tensors, run["emulate"]))
    assert meter is not None, "a list of runs is not empty"
    for _ in range(work["repeats"]):
        for trainer, tensors, emulates in runs:
            meter.seconds_of(lambda t=trainer, x=tensors: t.step(*x).numpy(), 1, lambda: 0)
            meter.readings[-1].update({} if emulates else pass_seconds(trainer, tensors))
    meter.save(folder)


def pass_seconds(trainer: Trainer, batch: list[Any]) -> dict[str, float]:
    """Median seconds of this stage's forward pass and of both halves of its backward pass."""
    (part,) = trainer._parts.values()
    part.take(batch)
    part.executor.begin([part.inputs[m] for m in sorted(part.inputs)])
    plan = part.plan
    received = {
        op.attrs["tensor"]: flow.ones(*plan.graph.tensors[op.outputs[0]].spec.shape)
        for op in plan.graph.ops
        if op.kind == "stage_input"
    }
    returned = {
        op.attrs["tensor"]: flow.ones(*plan.graph.tensors[op.inputs[0]].spec.shape)
        for op in plan.graph.ops
        if op.kind == "stage_output"
    }
    seconds: dict[str, list[float]] = {"forward_s": [], "backward_s": []}
    sync = flow._oneflow_internal.eager.Sync
    for _ in range(PASSES):
        sync()
        began = time.perf_counter()
        part.executor.forward_pass(0, {**part.inputs[0], **received}, 1.0)
        sync()
        middle = time.perf_counter()
        part.executor.backward_pass(0, returned, 1.0, delays=False)
        sync()
        seconds["forward_s"].append(middle - began)
        seconds["backward_s"].append(time.perf_counter() - middle)
    return {name: statistics.median(times) for name, times in seconds.items()}


main(sys.argv[1])
