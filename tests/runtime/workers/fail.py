"""Trains, until one rank fails in the way that the arguments say: `mode rank`."""

import os
import signal
import sys
import time

import oneflow as flow

from autoddl.plans.schedule.duplex import best_turns
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.execution.gradients import Gradients
from autoddl.runtime.jobs.guard import install_guard, rank, world_size
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import build


class Broken(flow.optim.SGD):
    """Fails in the middle of the trainer's step."""

    fails = False

    def step(self, closure=None):
        if not self.fails:
            return super().step(closure)
        announce()
        raise RuntimeError("the optimizer of rank 1 is broken")


def lose_one(self, node=None) -> None:
    """In the place of `Gradients.leave`: fails while others wait for this rank's gradients."""
    announce()
    raise RuntimeError("rank 1 has lost its gradients")


def announce() -> None:
    print(f"failing at {time.time()}", flush=True)


def main() -> None:
    mode, is_bad = sys.argv[1], rank() == int(sys.argv[2])
    install_guard()
    if mode == "late" and is_bad:
        announce()
        time.sleep(600)
    if mode == "early" and is_bad:
        announce()
        raise RuntimeError("before anything was shared")
    model, loss, batch = build("perceptron")
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    parts = 2 if mode == "turns" else 1
    plan = random_plan(traced.graph, cluster_of(1, world_size()), 0, micro_batches=parts)
    optimizer = OPTIMIZERS["sgd"]
    if mode == "step":
        Broken.fails = is_bad
        optimizer = lambda p: Broken(p, lr=0.1)  # noqa: E731
    if mode == "turns":
        plan = plan.changed(turns=best_turns(stage_figures(plan.stage).maker), in_flight=2)
    if mode in ("exchange", "turns"):
        order = reversed(range(len(plan.stage.exchanges)))
        plan = plan.changed(buckets=tuple((number,) for number in order))
        assert len(plan.stage.buckets) > 1
    trainer = build_trainer(traced, plan, optimizer)
    print(f"rank {rank()} is process {os.getpid()}", flush=True)
    for step in range(1, 1000):
        if is_bad and step == 2 and mode in ("exchange", "turns"):
            Gradients.leave = lose_one
        elif is_bad and step == 2 and mode != "step":
            announce()
            if mode == "raise":
                raise RuntimeError("no more data")
            if mode == "exit":
                sys.exit(7)
            if mode == "leave":
                break
            if mode == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if mode == "sleep":
                time.sleep(600)
            if mode == "vanish":
                os._exit(0)
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "shape":
                trainer.step(*batch(step, 4))
            if mode == "alone":
                trainer.state_dict()
        float(trainer.step(*batch(step, 8)))


main()
