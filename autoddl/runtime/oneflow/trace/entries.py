"""What the command line needs from OneFlow for a model given by name (`module:function`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import oneflow as flow

from ....graph.graph import Graph
from ...calling import as_arguments
from ...entry import Entry, call_entry
from ...nested import put_tensors, take_tensors
from .job.meta import storage_free
from .trace import trace

MOMENTUM = 0.9  # the usual choice with SGD


def trace_entry(model: str, batch: int | None = None) -> Graph:
    """The graph of `model` (module:function), built without memory for its parameters."""
    with storage_free():
        built, example, loss = call_entry(model, batch)
    return trace(built, *as_arguments(example), loss=loss)


def build_entry(model: str, batch: int | None, seed: int) -> Entry:
    """(model, example, loss) of `model` for training, with the initial parameters of `seed`."""
    flow.manual_seed(seed)
    return call_entry(model, batch)


def optimizer_maker(name: str, lr: float) -> Callable[[Any], Any]:
    """parameters -> the OneFlow optimizer called `name`: adam, adamw, momentum (of 0.9) or sgd."""
    if name in ("adam", "adamw"):
        kind = {"adam": flow.optim.Adam, "adamw": flow.optim.AdamW}[name]
        return lambda params: kind(params, lr=lr)
    momentum = {"momentum": MOMENTUM, "sgd": 0.0}[name]
    return lambda params: flow.optim.SGD(params, lr=lr, momentum=momentum)


def to_arrays(example: Any) -> list[np.ndarray]:
    """The values of an example's tensors."""
    return [tensor.numpy() for tensor in take_tensors(example, flow.Tensor)[1]]


def to_arguments(arrays: Sequence[np.ndarray], example: Any) -> tuple[Any, ...]:
    """A batch like `example`, of these values, as `Trainer.step` takes it."""
    structure, _ = take_tensors(example, flow.Tensor)
    return as_arguments(put_tensors(structure, to_tensors(arrays)))


def to_tensors(arrays: Sequence[np.ndarray]) -> list[Any]:
    """OneFlow tensors of the same values and dtypes."""
    return [flow.tensor(array) for array in arrays]
