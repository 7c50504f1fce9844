"""Trains by random plans whose repeated blocks run forward again, and by the same without that.

Arguments: one JSON object a case (model, optimizer, micro_batches, seed, alone).
"""

import json
import sys

import numpy as np
from train import alone, distance

from autoddl.graph.regions import repeated_blocks
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS, build

ROWS, STEPS = 8, 2


def train(name, plan, optimizer):
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    trainer = build_trainer(traced, plan, OPTIMIZERS[optimizer], debug=True)
    losses = [float(trainer.step(*batch(step, ROWS))) for step in range(STEPS)]
    return losses, {k: v.numpy() for k, v in trainer.state_dict().items()}


def run(case):
    name, optimizer, parts = case["model"], case["optimizer"], case["micro_batches"]
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    plan = random_plan(traced.graph, cluster_of(2, 2), case["seed"], micro_batches=parts)
    blocks = repeated_blocks(plan.graph)
    assert len(blocks) >= 3, blocks
    losses, state = train(name, plan.changed(recomputed=blocks), optimizer)
    kept_losses, kept_state = train(name, plan, optimizer)
    assert losses == kept_losses, (case, losses, kept_losses)
    assert all(np.array_equal(state[k], kept_state[k]) for k in kept_state), case
    if case["alone"]:
        options = {"optimizer": optimizer, "micro_batches": parts, "rows": ROWS, "steps": STEPS}
        wanted, wanted_state, _ = alone(name, options)
        worst = max(abs(a / b - 1) for a, b in zip(losses, wanted, strict=True))
        assert worst < (1e-5 if optimizer == "sgd" else 1e-4), (case, losses, wanted)
        assert distance(state, wanted_state) < 1e-4, case
    if rank() == 0:
        print(f"equal: {name} {optimizer} {parts}", flush=True)


if __name__ == "__main__":
    for text in sys.argv[1:]:
        run(json.loads(text))
