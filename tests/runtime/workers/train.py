"""Trains a small model by random plans and compares it with the same model on one device.

Arguments: one JSON object (see `DEFAULTS`).
"""

import json
import sys

import numpy as np
import oneflow as flow

from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS, build

DEFAULTS = {
    "nodes": 2,
    "gpus": 2,
    "rows": 8,
    "plans": [0],
    "steps": 3,
    "micro_batches": 1,
    "optimizer": "sgd",
    "debug": True,
    "own_rows": False,
    "favour_splits": True,
}


def alone(name, options):
    """Losses, state and result of the model on one device, in this process."""
    model, loss, batch = build(name)
    optimizer = OPTIMIZERS[options["optimizer"]](model.parameters())
    losses = []
    parts, rows = options["micro_batches"], options["rows"]
    for step in range(options["steps"]):
        total = 0.0
        for m in range(parts):
            part = slice(m * rows // parts, (m + 1) * rows // parts)
            *inputs, target = (t[part] for t in batch(step, rows))
            value = loss(model(*inputs), target) / parts
            value.backward()
            total += float(value)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    model.eval()
    out = model(*batch(99, rows)[:-1])
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}, out.numpy()


# their true gradient is zero (a norm or a softmax follows); Adam blows up what rounding leaves,
# and a moving mean follows
IDLE = ("conv1.bias", "bn1.running_mean", "qkv.bias")


def distance(got, expected, skipped=()):
    """Norm of the difference over the norm, of all tensors together."""
    expected = {k: v for k, v in expected.items() if k not in skipped}
    apart = sum(np.sum((got[k].astype(float) - expected[k]) ** 2) for k in expected)
    return float(np.sqrt(apart / sum(np.sum(expected[k].astype(float) ** 2) for k in expected)))


def together(name, options, seed):
    model, loss, batch = build(name)
    rows = options["rows"]
    if rank() != 0:
        for parameter in model.parameters():
            parameter.data.zero_()  # rank 0's values count
    cluster = cluster_of(options["nodes"], options["gpus"])
    traced = trace_with_state(model, *batch(0, rows), loss=loss)
    plan = random_plan(
        traced.graph,
        cluster,
        seed,
        micro_batches=options["micro_batches"],
        favour_splits=options["favour_splits"],
    )
    trainer = build_trainer(traced, plan, OPTIMIZERS[options["optimizer"]], debug=options["debug"])
    losses = []
    for step in range(options["steps"]):
        tensors = batch(step, rows)
        if options["own_rows"]:
            tensors = [flow.tensor(t.numpy()[trainer.rows]) for t in tensors]
        losses.append(float(trainer.step(*tensors)))
    out = trainer.eval_step(*batch(99, rows)[:-1])
    state = {k: v.numpy() for k, v in trainer.state_dict().items()}
    fresh, *_ = build(name)
    fresh.load_state_dict({k: flow.tensor(v) for k, v in state.items()})
    return losses, state, out.numpy()


def main() -> None:
    name, options = sys.argv[1], {**DEFAULTS, **json.loads(sys.argv[2])}
    expected = alone(name, options)
    for seed in options["plans"]:
        got = together(name, options, seed)
        if rank() == 0:
            losses = np.max(np.abs(np.array(got[0]) / np.array(expected[0]) - 1))
            assert got[1].keys() == expected[1].keys(), (got[1].keys(), expected[1].keys())
            apart = np.abs(got[2] - expected[2]).max() / np.abs(expected[2]).max()
            state = distance(got[1], expected[1], IDLE if options["optimizer"] == "adam" else ())
            print(
                f"plan {seed} losses {losses:.2e} state {state:.2e} result {apart:.2e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
