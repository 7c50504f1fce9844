"""Trains random models by a searched plan and by a random one, and on one device.

Arguments: the first seed, and how many models.
"""

import sys

import numpy as np
import oneflow as flow
import oneflow.nn.functional as F

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_models import RandomModel
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS, floats
from tests.runtime.workers.train import distance

ROWS, STEPS = 8, 2
TOLERANCE = 1e-5


def built(seed: int) -> RandomModel:
    flow.manual_seed(7)
    return RandomModel(seed)


def main() -> None:
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        model, optimizer = built(seed), OPTIMIZERS["sgd"]
        shape, names = model.shape, model.names
        steps = [np.random.default_rng(step) for step in range(STEPS)]
        batches = [(floats(rng, ROWS, *shape), floats(rng, ROWS, 4)) for rng in steps]
        update, losses = optimizer(model.parameters()), []
        for x, target in batches:
            loss = F.mse_loss(model(x), target)
            loss.backward()
            update.step()
            update.zero_grad()
            losses.append(float(loss))
        expected = {name: value.numpy() for name, value in model.state_dict().items()}
        graph = trace_with_state(built(seed), *batches[0], loss=F.mse_loss).graph
        where = cluster_of(2, 2)
        for plan in (
            find_plan(graph, where, PlanOptions(baselines=False)),
            random_plan(graph, where, seed),
        ):
            traced = trace_with_state(built(seed), *batches[0], loss=F.mse_loss)
            trainer = build_trainer(traced, plan, optimizer, debug=True)
            got = [float(trainer.step(*batch)) for batch in batches]
            state = {name: value.numpy() for name, value in trainer.state_dict().items()}
            apart = max(abs(a / b - 1) for a, b in zip(got, losses, strict=True))
            assert apart < TOLERANCE, (seed, names, got, losses)
            assert distance(state, expected) < TOLERANCE, (seed, names)
        if rank() == 0:
            print(f"model {seed} equal: {names}", flush=True)


if __name__ == "__main__":
    main()
