"""Trains a small model by random plans with emulated compute; prints traffic and seconds."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import oneflow as flow
from random_plans import cluster_of, random_plan
from small_models import build

from autoddl.backend.oneflow.emulate import Emulator
from autoddl.backend.oneflow.guard import rank
from autoddl.backend.oneflow.trace import trace_with_state
from autoddl.backend.oneflow.trainer import build_trainer
from autoddl.cost.compute import at_rate

name, rate = sys.argv[1], float(sys.argv[2])
model, example, loss = build(name)
traced = trace_with_state(model, *example, loss=loss)
for seed in range(3):
    plan = random_plan(traced.graph, cluster_of(2, 2), seed)
    device = at_rate(plan.cluster.device, rate)
    plan = dataclasses.replace(plan, cluster=dataclasses.replace(plan.cluster, device=device))
    found = []
    for emulate in (None, plan.model):
        trainer = build_trainer(
            traced, plan, lambda p: flow.optim.SGD(p, lr=0.0), emulate=emulate
        )
        trainer.step(*example)
        trainer._groups.log = log = []
        started = time.perf_counter()
        trainer.step(*example).numpy()
        found.append((time.perf_counter() - started, [dataclasses.astuple(t) for t in log]))
    if rank() == 0:
        (_, real), (seconds, emulated) = found
        print(json.dumps({
            "equal": real == emulated, "collectives": len(real), "seconds": seconds,
            "compute_s": plan.cost.compute_s,
        }), flush=True)  # fmt: skip
assert Emulator.__module__.endswith("emulate")
