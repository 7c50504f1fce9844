"""Trains a perceptron by a plan with the second all-reduce, and compares it with one process."""

import numpy as np
import oneflow as flow

import autoddl
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.recipes.second_all_reduce import RUNTIME_WAYS, machine
from tests.runtime.small_models import OPTIMIZERS, Perceptron

ROWS, STEPS = 16, 3


def batch(step):
    rng = np.random.default_rng(step)
    x = rng.standard_normal((ROWS, 8)).astype(np.float32)
    return flow.tensor(x), flow.tensor(rng.integers(0, 8, ROWS))


def alone(loss):
    model, losses = Perceptron(64), []
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for step in range(STEPS):
        x, target = batch(step)
        value = loss(model(x), target)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(value))
    return losses


def main() -> None:
    loss = flow.nn.CrossEntropyLoss()
    flow.manual_seed(0)
    expected = alone(loss)
    flow.manual_seed(0)
    traced = trace_with_state(Perceptron(64), *batch(0), loss=loss)
    plan = autoddl.plan(traced.graph, machine(2, 2))
    edges = plan.stage.edges.values()
    gathered = [s for e in edges for s in (*e.forward, *e.backward) if s.algorithm]
    trainer = build_trainer(traced, plan, OPTIMIZERS["sgd"], debug=True, ways=RUNTIME_WAYS)
    losses = [float(trainer.step(*batch(step))) for step in range(STEPS)]
    apart = np.abs(np.array(losses) / np.array(expected) - 1).max()
    assert gathered and apart < 1e-5, (gathered, losses, expected)
    if rank() == 0:
        print(f"{len(gathered)} gathered sums, losses apart by {apart:.1e}")


main()
