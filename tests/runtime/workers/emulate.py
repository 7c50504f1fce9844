"""Trains a model by random plans, really and with emulated compute; prints what both did.

Arguments: the model, the FLOP/s to imitate.
"""

import dataclasses
import json
import sys
import time

import oneflow as flow

from autoddl.cost.operators import at_rate
from autoddl.plans.figures import figures
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.training import build


def main(name: str, rate: float) -> None:
    model, loss, batch = build(name)
    example = batch(0, 8)
    traced = trace_with_state(model, *example, loss=loss)
    for seed in range(1):
        plan = random_plan(traced.graph, cluster_of(2, 2), seed)
        device = at_rate(plan.cluster.device, rate)
        plan = plan.on(dataclasses.replace(plan.cluster, device=device))
        logs, seconds = [], 0.0
        for emulate in (False, True):
            trainer = build_trainer(
                traced, plan, lambda p: flow.optim.SGD(p, lr=0.0), emulate=emulate
            )
            trainer.step(*example).numpy()
            log: list = []
            trainer._job.groups.log = log
            started = time.perf_counter()
            trainer.step(*example).numpy()
            seconds = time.perf_counter() - started
            logs.append([dataclasses.astuple(traffic) for traffic in log])
        if rank() == 0:
            found = {
                "equal": logs[0] == logs[1],
                "collectives": len(logs[0]),
                "seconds": seconds,
                "compute_s": figures(plan).cost.compute_s,
            }
            print(json.dumps(found), flush=True)


main(sys.argv[1], float(sys.argv[2]))
