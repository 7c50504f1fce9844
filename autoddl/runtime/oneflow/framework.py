"""What the runtime has for models of OneFlow: a `runtime.framework.Framework`."""

from .backend import OneFlow as new_backend
from .trace.entries import (
    build_entry,
    optimizer_maker,
    to_arguments,
    to_arrays,
    to_tensors,
    trace_entry,
)
from .trace.trace import trace_with_state
from .trainer import build_trainer

__all__ = [
    "build_entry",
    "build_trainer",
    "new_backend",
    "optimizer_maker",
    "to_arguments",
    "to_arrays",
    "to_tensors",
    "trace_entry",
    "trace_with_state",
]
NAME = "oneflow"
