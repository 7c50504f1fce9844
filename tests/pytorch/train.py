"""Trains models by several plans and alone, and compares; a JSON line each.

Arguments: MODEL OPTIMIZER STEPS NODES GPUS MICRO_BATCHES SCHEME..., the schemes as in
`tests/exactness/schemes.py`; SCHEME@3-1 divides tensors among hosts by shares.
"""

import functools
import json
import os
import sys
import tempfile

import torch

from autoddl.cluster.spec import Cluster
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.torch.backend import Torch
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.exactness.schemes import ZERO, plan_of
from tests.pytorch.models import build, relative

HINTS = {  # of a GPT on 2x2
    "blocks.0.qkv": "replicate()",
    "blocks.*.fc1": "split(4)",
    "blocks.1.proj": ("split(2)", "replicate(2)"),
    "words.weight": "(B, S0)",
}


def made(name):
    if name == "adam":
        return lambda p: torch.optim.Adam(p, lr=1e-3)
    return lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)


def alone(model_name, optimizer, steps):
    """The losses and the last state of one process in eager torch."""
    model, loss, batch = build(model_name)
    own = made(optimizer)(model.parameters())
    losses = []
    for step in range(steps):
        x, y = batch(step)
        own.zero_grad()
        value = loss(model(x), y)
        value.backward()
        own.step()
        losses.append(float(value))
    return losses, model.state_dict()


@functools.cache
def recorded(model_name):
    model, loss, batch = build(model_name)
    return trace_with_state(model, *batch(0), loss=loss), batch


def together(model_name, optimizer, steps, cluster, parts, scheme, expected):
    losses, state = expected
    traced, batch = recorded(model_name)
    if traced.opaque:  # may have changed buffers of its own by the next scheme
        recorded.cache_clear()
    asked, _, shares = scheme.partition("@")
    cluster = cluster.with_shares(tuple(map(int, shares.split("-"))) if shares else ())

    def make() -> str:
        return plan_of(asked, traced.graph, cluster, optimizer, parts, HINTS).dumps()

    plan = Plan.loads(share_text(make, Torch()))
    trainer = build_trainer(traced, plan, made(optimizer))
    worst = 0.0
    for step in range(steps):
        worst = max(worst, relative(float(trainer.step(*batch(step))), losses[step]))
        if scheme.partition(":")[0] in ZERO and step == steps // 2:
            folder = share_text(tempfile.mkdtemp, Torch())
            trainer.save(folder)
            trainer.load(folder)
    found = trainer.state_dict()
    assert found.keys() == state.keys()
    floats = {k: v for k, v in state.items() if v.is_floating_point()}
    apart = sum(float((found[k] - v).square().sum()) for k, v in floats.items())
    size = sum(float(v.square().sum()) for v in floats.values())
    ops = [op for stage in plan.stages for op in stage.ops.values()]
    stages = sorted({e.zero_stage for stage in plan.stages for e in stage.edges.values()})
    return {
        "scheme": scheme, "losses": worst, "parameters": (apart / size) ** 0.5, "stages": stages,
        "blocks": len(plan.recomputed), "pipeline": plan.num_stages, "ops": len(ops),
        "partial": sum(op.outs[0].has_partial for op in ops if op.outs),
        "split_ops": sum(any(p.is_split for p in op.ins[0]) for op in ops if op.ins),
    }  # fmt: skip


def threads() -> int:
    """Of this process, those of gloo's groups among them."""
    return len(os.listdir("/proc/self/task"))


def main() -> None:
    model, optimizer, steps, nodes, gpus, parts, *schemes = sys.argv[1:]
    torch.set_num_threads(1)
    cluster = Cluster.load("laptop").with_shape(nodes=int(nodes), gpus_per_node=int(gpus))
    expected = alone(model, optimizer, int(steps))
    for scheme in schemes:
        found = together(model, optimizer, int(steps), cluster, int(parts), scheme, expected)
        if rank() == 0:
            print(json.dumps({**found, "threads": threads()}), flush=True)


main()
