"""A traced model in double precision on NumPy: alone, by the reference operators, and by plans.

Rounding is then far below what any mistake makes, and many ranks are threads of one process.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import autograd.numpy as anp
import numpy as np
from autograd import grad

from autoddl.graph.graph import Graph
from autoddl.plans import Plan
from autoddl.runtime.nested import Slot
from autoddl.runtime.traced import Evaluation, Traced
from autoddl.runtime.trainer import Trainer
from autoddl.sbp.oracle import Shard
from tests.exactness.numpy_backend import Momentum, NumPy, World
from tests.sbp import operators

RATE, MOMENTUM = 0.02, 0.9
Arrays = dict[str, np.ndarray]
Batch = Callable[[int], Sequence[np.ndarray]]


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def in_float64(graph: Graph, path: Path) -> Graph:
    """By way of a file. Numbers of words and masks stay what they are."""
    tensors = {
        name: dataclasses.replace(t, spec=dataclasses.replace(t.spec, dtype="float64"))
        if t.spec.dtype == "float32" else t
        for name, t in graph.tensors.items()
    }  # fmt: skip
    ops = tuple(
        dataclasses.replace(op, attrs={**op.attrs, "dtype": "float64"})
        if op.attrs.get("dtype") == "float32" else op
        for op in graph.ops
    )  # fmt: skip
    dataclasses.replace(graph, ops=ops, tensors=tensors).save(path)
    return Graph.load(path)


def run(graph: Graph, params: Mapping, buffers: Arrays, batch: Sequence[np.ndarray]) -> Mapping:
    """Every tensor of the graph."""
    values = {}
    for op in graph.ops:
        if op.kind == "input":
            values[op.outputs[0]] = batch[op.attrs["index"]]
        elif op.kind in ("param", "buffer"):
            name = op.attrs["name"]
            values[op.outputs[0]] = params[name] if name in params else buffers[name]
        elif op.kind != "loss":
            spec = graph.spec(op)
            starts = (
                tuple((0,) * len(t.shape) for t in side) for side in (spec.inputs, spec.outputs)
            )
            whole = Shard(spec, *starts)
            outs = operators.FORWARD[op.kind]([values[n] for n in op.inputs], op.attrs, whole)
            values.update(zip(op.outputs, outs, strict=True))
    return values


def alone(
    graph: Graph, params: Arrays, buffers: Arrays, batch: Batch, steps: int
) -> tuple[list[float], Arrays]:
    """Losses, and parameters after all steps."""
    velocity, losses = {}, []
    for step in range(steps):
        given = batch(step)
        losses.append(float(run(graph, params, buffers, given)[graph.loss]))
        slopes = grad(
            lambda p, given=given: anp.sum(run(graph, p, buffers, given)[graph.loss])
        )(params)  # fmt: skip
        velocity = {k: MOMENTUM * velocity.get(k, 0.0) + g for k, g in slopes.items()}
        params = {k: v - RATE * velocity[k] for k, v in params.items()}
    return losses, params


def by_plan(
    plan: Plan, params: Arrays, buffers: Arrays, batch: Batch, steps: int
) -> list[tuple[list[float], Arrays]]:
    """The same of every rank."""
    keys = {name: name for name in (*params, *buffers)}

    def train(backend: NumPy) -> tuple[list[float], Arrays]:
        own = {k: v.copy() for k, v in params.items()}
        rest = {k: v.copy() for k, v in buffers.items()}
        traced = Traced(plan.graph, own, rest, keys, evaluation=Evaluation(Slot(0)))
        trainer = Trainer(
            traced, plan, functools.partial(Momentum, lr=RATE, momentum=MOMENTUM), backend
        )
        losses = [float(trainer.step(*batch(step))) for step in range(steps)]
        return losses, trainer.state_dict()

    return World(plan.cluster.num_devices).run(train)
