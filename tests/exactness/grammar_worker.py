"""Trains models of the grammar by searched and random plans, and alone, and prints what differs.

Arguments: NODES GPUS SEED... Prints a JSON line for each model and plan: how far losses and
parameters are from one process after three steps, and, where that is more than rounding, how far
one process is from itself with the rows of its batches in another order.
"""

import json
import random
import sys
from collections.abc import Iterator

import numpy as np
import oneflow as flow

from autoddl.cluster.spec import Cluster
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.runtime.traced import Traced
from tests.exactness.grammar import GrammarModel, loss
from tests.runtime.random_plans import random_plan

STEPS, LIMIT = 3, 1e-5


def model_of(seed: int) -> GrammarModel:
    flow.manual_seed(seed)
    return GrammarModel(seed)


def optimizer(parameters):
    return flow.optim.SGD(parameters, lr=0.02, momentum=0.9)


def alone(seed: int, order: int | None = None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses, and parameters after all steps; with the rows in another `order`."""
    model = model_of(seed)
    made, losses = optimizer(model.parameters()), []
    for step in range(STEPS):
        batch = model.batch(step)
        if order is not None:
            rows = np.random.default_rng((order, step)).permutation(model.rows)
            batch = tuple(flow.tensor(x.numpy()[rows]) for x in batch)
        *inputs, target = batch
        value = loss(model(*inputs), target)
        value.backward()
        made.step()
        made.zero_grad()
        losses.append(float(value))
    return np.array(losses), {k: v.numpy() for k, v in model.state_dict().items()}


def plans(traced: Traced, cluster: Cluster, seed: int) -> Iterator[tuple[str, Plan | str]]:
    """By name; a message instead of what is refused."""
    rng = random.Random(seed)
    parts, graph = rng.choice((1, 1, 2, 3)), traced.graph
    parts = 1 if graph.batch % parts else parts
    for count in dict.fromkeys((parts, 1)):
        made = {
            "searched": lambda n=count: find_plan(
                graph, cluster, PlanOptions(micro_batches=n, baselines=False, optimizer="sgd")
            ),
            "random": lambda n=count: random_plan(graph, cluster, seed, micro_batches=n),
        }
        refused = False
        for name, make in made.items():
            try:
                text = share_text(lambda make=make: make().dumps(), OneFlow())
            except ValueError as error:
                refused = True
                yield f"{name} in {count}", str(error)
                continue
            yield f"{name} in {count}", Plan.loads(text)
        if not refused:
            return


def apart(a: tuple, b: tuple) -> tuple[float, float]:
    """Of losses, relatively; of all parameters and buffers together, in their norm."""
    losses = float(np.max(np.abs(a[0] / b[0] - 1)))
    (ours, theirs) = (
        np.concatenate([np.asarray(x[1][k], float).ravel() for k in sorted(b[1])]) for x in (a, b)
    )
    return losses, float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def compare(cluster: Cluster, seed: int) -> None:
    model, expected = model_of(seed), alone(seed)
    started = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    told = {"seed": seed, "shape": f"{cluster.nodes}x{cluster.gpus_per_node}", "rows": model.rows}
    if not np.all(np.isfinite(expected[0])):
        return say({**told, "plan": "-", "end": "not finite alone"})
    try:
        traced = trace_with_state(model, *model.batch(0), loss=loss)
    except ValueError as error:
        return say({**told, "plan": "-", "end": "not traced", "why": str(error)[:300]})
    for name, plan in plans(traced, cluster, seed):
        if isinstance(plan, str):
            say({**told, "plan": name, "end": "no plan", "why": plan[:300]})
            continue
        model.load_state_dict({k: flow.tensor(v) for k, v in started.items()})
        traced = trace_with_state(model, *model.batch(0), loss=loss)
        try:
            trainer = build_trainer(traced, plan, optimizer)
        except ValueError as error:  # on every rank: as rows of the batch meet
            say({**told, "plan": name, "end": "no plan", "why": str(error)[:300]})
            continue
        losses = [float(trainer.step(*model.batch(step))) for step in range(STEPS)]
        found = np.array(losses), {k: v.numpy() for k, v in trainer.state_dict().items()}
        far = apart(found, expected)
        split = sum(any(p.is_split for p in op.ins[0]) for op in plan.stage.ops.values() if op.ins)
        line = {**told, "plan": name, "split": split, "ops": len(plan.stage.ops), "apart": far}
        if max(far) > LIMIT:
            line["itself"] = apart(alone(seed, order=1), expected)
        say({**line, "end": "equal" if max(far) <= LIMIT else "differs", "names": model.names[:40]})


def say(line: dict) -> None:
    if rank() == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    nodes, gpus, *seeds = map(int, sys.argv[1:])
    where = Cluster.load("laptop").with_shape(nodes=nodes, gpus_per_node=gpus)
    for seed in seeds:
        compare(where, seed)
