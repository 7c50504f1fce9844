"""Trains a perceptron by a plan with the second all-reduce, and compares it with one process."""

import autoddl
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.recipes.second_all_reduce import RUNTIME_WAYS, machine
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import alone, build, differences, together

ROWS, STEPS = 16, 3


def main() -> None:
    model, loss, batch = build("classifier")
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    plan = autoddl.plan(traced.graph, machine(2, 2))
    edges = plan.stage.edges.values()
    gathered = [s for e in edges for s in (*e.forward, *e.backward) if s.algorithm]
    trainer = build_trainer(traced, plan, OPTIMIZERS["sgd"], debug=True, ways=RUNTIME_WAYS)
    found = together(trainer, batch, ROWS, STEPS)
    losses, state, _ = differences(found, alone("classifier", "sgd", ROWS, STEPS))
    assert gathered and losses < 1e-5 and state < 1e-5, (gathered, losses, state)
    if rank() == 0:
        print(f"{len(gathered)} gathered sums, losses apart by {losses:.1e}")


main()
