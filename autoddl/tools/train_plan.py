"""One rank of a run of a plan file: its model with made-up parameters, trained on made-up data."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass, replace

from ..cost.operators import at_rate
from ..plans import Plan
from ..plans.figures import figures
from ..plans.report.machine import estimates_notes
from ..runtime.framework import need_oneflow
from ..runtime.jobs.guard import install_guard, rank
from .synthetic import synthetic_batches

EMULATED = "emulated compute"


@dataclass(frozen=True)
class PlanJob:
    """What to run. `emulate_compute`: FLOP/s of the device to imitate; None computes."""

    plan_file: str
    steps: int = 5
    lr: float = 1e-3
    emulate_compute: float | None = None
    as_json: bool = False

    def check(self, nodes: int, gpus_per_node: int) -> Plan:
        """The plan, if it is for so many devices and can run from its file. ValueError if not."""
        plan = Plan.load(self.plan_file)
        if self.emulate_compute is not None:
            at_rate(plan.cluster.device, self.emulate_compute)
        if (plan.cluster.nodes, plan.cluster.gpus_per_node) != (nodes, gpus_per_node):
            raise ValueError(
                f"{self.plan_file} is for {plan.cluster.nodes} x {plan.cluster.gpus_per_node} "
                f"devices, the box has {nodes} x {gpus_per_node}; plan with --nodes {nodes} "
                f"--gpus-per-node {gpus_per_node}, or take the box down and start one that fits"
            )
        if any(op.kind == "opaque" for op in plan.graph.ops):
            raise ValueError(
                f"{self.plan_file}: the model has modules that autoddl runs as they are; a plan "
                "file alone cannot run them. Write a script that calls autoddl.parallelize"
            )
        return plan

    def run(self) -> None:
        """Train for `steps` steps on this rank. Rank 0 prints the losses and the times."""
        need_oneflow("autoddl box run")
        install_guard()
        from ..runtime.oneflow.trace.entries import optimizer_maker, to_tensors
        from ..runtime.oneflow.trace.from_graph import made_up_example, made_up_model
        from ..runtime.oneflow.trainer import build_trainer

        plan = Plan.load(self.plan_file)
        emulated = self.emulate_compute is not None
        if self.emulate_compute is not None:
            device = at_rate(plan.cluster.device, self.emulate_compute)
            plan = plan.on(replace(plan.cluster, device=device))
        trainer = build_trainer(
            made_up_model(plan.graph, plan.seed),
            plan,
            optimizer_maker("adam" if plan.optimizer == "adamw" else plan.optimizer, self.lr),
            emulate=emulated,
        )
        note = f" ({EMULATED}, {self.emulate_compute:g} FLOP/s)" if emulated else ""
        self._say(
            f"{plan.graph.name}: predicted {figures(plan).cost.iteration_s:.3g} s a step{note}"
        )
        for text in estimates_notes(plan.cluster):
            self._say(text)
        seconds, losses = [], []
        batches = synthetic_batches(made_up_example(plan), plan.graph, self.steps, plan.seed)
        for step, arrays in enumerate(batches, start=1):
            started = time.perf_counter()
            losses.append(float(trainer.step(*to_tensors(arrays))))
            seconds.append(time.perf_counter() - started)
            loss = "" if emulated else f"  loss {losses[-1]:.6f}"
            self._say(f"step {step:3d}{loss}  {seconds[-1]:.3f} s{note and f'  {EMULATED}'}")
        if self.as_json and rank() == 0:
            found = {
                "plan": os.path.basename(self.plan_file),
                "predicted_step_s": figures(plan).cost.iteration_s,
                "median_step_s": statistics.median(seconds),
                "steps_s": seconds,
                "losses": None if emulated else losses,
                "compute": f"{EMULATED}, {self.emulate_compute:g} FLOP/s" if emulated else "real",
            }
            print(json.dumps(found), flush=True)

    def _say(self, line: str) -> None:
        if rank() == 0 and not self.as_json:
            print(line, flush=True)
