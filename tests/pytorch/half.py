"""Trains models in 16 bits by several plans, and alone by torch's autocast; a JSON line each.

Arguments: PRECISION STEPS NODES GPUS SCHEME MODEL..., the schemes as in
`tests/exactness/schemes.py`.
"""

import json
import sys

import torch

from autoddl.cluster.spec import Cluster
from autoddl.graph.precision import in_precision
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.torch.backend import Torch
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.exactness.schemes import plan_of
from tests.pytorch.models import build

BATCHES = 10


def made(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def autocast(name: str, precision: str, steps: int) -> list[float]:
    """The losses of one process, with the scale that `GradScaler` begins with."""
    model, loss, batch = build(name)
    optimizer, losses = made(model.parameters()), []
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    for step in range(steps):
        x, y = batch(step % BATCHES)
        with torch.autocast("cpu", dtype=getattr(torch, precision)):
            value = loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.item())
    return losses


def planned(name: str, precision: str, steps: int, cluster: Cluster, scheme: str):
    """The losses of a plan, and whether its parameters have stayed float32."""
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0), loss=loss)
    graph = in_precision(traced.graph, precision)

    def make() -> str:
        return plan_of(scheme, graph, cluster, "adam", 1).changed(precision=precision).dumps()

    trainer = build_trainer(traced, Plan.loads(share_text(make, Torch())), made)
    losses = [float(trainer.step(*batch(step % BATCHES))) for step in range(steps)]
    state = trainer.state_dict().values()
    return losses, all(x.dtype == torch.float32 for x in state if x.is_floating_point())


def main() -> None:
    precision, steps, nodes, gpus, scheme, *models = sys.argv[1:]
    torch.set_num_threads(1)
    cluster = Cluster.load("laptop").with_shape(nodes=int(nodes), gpus_per_node=int(gpus))
    for name in models:
        losses, is_wide = planned(name, precision, int(steps), cluster, scheme)
        if rank() == 0:
            expected = autocast(name, precision, int(steps))
            found = {"losses": losses, "expected": expected, "is_wide": is_wide}
            print(json.dumps(found), flush=True)


main()
