"""What tracing gives: a graph, and what the runtime needs beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..graph.graph import Graph
from ..graph.hints import recorded
from ..sbp.layout import TensorSpec
from .backend import Tensor
from .calling import Calling
from .nested import Slot

Trace = TypeVar("Trace", bound=Callable[..., Any])


class OpaqueWarning(UserWarning):
    """A submodule runs as one operator because of something unknown inside it."""


def with_hints(trace: Trace) -> Trace:
    """`trace` of a model, whose graph then has the hints of the model's own code."""

    @functools.wraps(trace)
    def tracing(model: Any, *example: Any, **options: Any) -> Traced:
        if not hasattr(model, "named_modules"):
            return trace(model, *example, **options)
        with recorded(model.named_modules()) as found:
            traced = trace(model, *example, **options)
        graph = replace(traced.graph, hints=tuple(dict.fromkeys(found)))
        return replace(traced, graph=graph) if found else traced

    return tracing  # type: ignore[return-value]


@dataclass(frozen=True)
class Traced:
    """A graph and what the runtime needs beside it.

    params:    dotted name -> parameter; tied parameters are there once, under their first name
    buffers:   dotted name -> buffer, and "#k" -> eager tensor that the model read from elsewhere;
               those that the graph does not read (BatchNorm's counter) are there too
    keys:      of the model's `state_dict` -> the name of that tensor; tied ones share it
    opaque:    operator name -> how to run it, for each operator of kind `opaque` (`Kernels.opaque`)
    structure: the model's result with `Slot(i)` in the place of `graph.outputs[i]`
    examples:  the specs of all tensors of the example, in the order of `calling`
    calling:   how the model is called with a batch; None if only its tensors are known
    model:     the user's, where the trainer gives a copy of it
    """

    graph: Graph
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    keys: Mapping[str, str]
    opaque: Mapping[str, Any] = field(default_factory=dict)
    structure: Any = None
    examples: tuple[TensorSpec, ...] = ()
    calling: Calling | None = None
    model: Any = None

    @property
    def batches(self) -> Calling:
        """How batches are given: as the example, or else as all tensors that the graph reads."""
        read = (op.attrs["index"] for op in self.graph.ops if op.kind == "input")
        return self.calling or Calling(tuple(map(Slot, range(max(read, default=-1) + 1))))
