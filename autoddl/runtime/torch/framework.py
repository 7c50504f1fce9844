"""What the runtime has for models of PyTorch: a `runtime.framework.Framework`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...graph.graph import Graph
from ..backend import OptimizerFn
from ..calling import as_arguments
from ..entry import Entry, call_entry
from ..jobs.guard import install_guard
from ..jobs.start import start_trainer
from ..nested import put_tensors, take_tensors
from ..traced import Traced
from ..trainer import Plan, Trainer
from .backend import Torch as new_backend
from .trace.trace import trace_with_state
from .trainer import TorchTrainer

__all__ = ["new_backend", "trace_with_state"]
NAME = "torch"
MOMENTUM = 0.9  # the usual choice with SGD


def build_trainer(traced: Traced, plan: Plan, optimizer: OptimizerFn, **options: Any) -> Trainer:
    install_guard()
    if empty := [n for n, x in {**traced.params, **traced.buffers}.items() if x.is_meta]:
        way_out = "move the model to memory (`to_empty`) and give it some (`load_state_dict`)"
        raise ValueError(f"{empty[0]} is on the meta device: it has no values to train; {way_out}")
    return start_trainer(traced, plan, optimizer, new_backend(), options, TorchTrainer)


def trace_entry(model: str, batch: int | None = None) -> Graph:
    with torch.device("meta"):
        built, example, loss = call_entry(model, batch)
    return trace_with_state(built, *as_arguments(example), loss=loss).graph


def build_entry(model: str, batch: int | None, seed: int) -> Entry:
    torch.manual_seed(seed)
    return call_entry(model, batch)


def optimizer_maker(name: str, lr: float) -> OptimizerFn:
    if kind := {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(name):
        return lambda params: kind(params, lr=lr)
    momentum = {"momentum": MOMENTUM, "sgd": 0.0}[name]
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum)


def to_arrays(example: Any) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in take_tensors(example, torch.Tensor)[1]]


def to_arguments(arrays: Sequence[np.ndarray], example: Any) -> tuple[Any, ...]:
    return as_arguments(put_tensors(take_tensors(example, torch.Tensor)[0], to_tensors(arrays)))


def to_tensors(arrays: Sequence[np.ndarray]) -> list[Any]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
