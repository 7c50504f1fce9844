"""A model made from its graph alone: random parameters, zero buffers, synthetic inputs.

It runs a plan file whose model is not available. The communication and the time of a step depend on
the shapes, not on the values.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow

from ....graph.graph import Graph
from ....plans import Plan
from ...traced import Traced

PARAMETER_SCALE = 0.02  # GPT-2's, small enough that activations of deep models stay finite


def made_up_model(graph: Graph, seed: int) -> Traced:
    """A model in place of a traced one. ValueError if the graph needs the original."""
    opaque = [op for op in graph.ops if op.kind == "opaque"]
    if opaque:
        raise ValueError(
            f"the plan's graph holds {opaque[0].attrs['module']!r}, a module that autoddl runs as "
            "it is: a plan file alone cannot run it; train the model with 'autoddl train --plan'"
        )
    rng = np.random.default_rng(seed)
    params, buffers = {}, {}
    for op in graph.ops:
        spec = graph.tensors[op.outputs[0]].spec if op.outputs else None
        if op.kind == "param" and spec is not None:
            values = rng.standard_normal(spec.shape) * PARAMETER_SCALE
            params[op.attrs["name"]] = flow.nn.Parameter(flow.tensor(values.astype(spec.dtype)))
        elif op.kind == "buffer" and spec is not None:
            buffers[op.attrs["name"]] = flow.zeros(*spec.shape, dtype=getattr(flow, spec.dtype))
    return Traced(graph, params, buffers, {n: n for n in (*params, *buffers) if n[0] != "#"})


def made_up_example(plan: Plan) -> list[np.ndarray]:
    """One empty global batch: the arrays that `Trainer.step` takes, by their place."""
    graph = plan.graph
    found: dict[int, np.ndarray] = {}
    for op in graph.ops:
        if op.kind == "input":
            tensor = graph.tensors[op.outputs[0]]
            shape = list(tensor.spec.shape)
            for dim in tensor.batch_dims[:1]:
                shape[dim] *= plan.micro_batches
            found[op.attrs["index"]] = np.zeros(shape, dtype=tensor.spec.dtype)
    count = max(found, default=-1) + 1
    return [found.get(index, np.zeros(1, dtype=np.float32)) for index in range(count)]
