"""A `GraphBuilder` for an exported program of torch.

What is known is computed (`constants.py`), and becomes a constant or a buffer where it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental import symbolic_shapes  # type: ignore[import-not-found]

from ....graph.builder import Factor, Follows, GraphBuilder, Ref, Size, Unknown
from ...tracing.varying import Varying, power_of
from .constants import Known, dtype_name, filled, uniform


@dataclass
class Emitter(GraphBuilder):
    """captured: the tensors that are buffers "#k", beside those of `like`.

    read:  tensors of the user's that are neither parameters nor buffers
    like:  of the same model in training, while it is in evaluation
    drops: whether attention has dropped weights
    """

    captured: dict[str, torch.Tensor] = field(default_factory=dict)
    read: list[torch.Tensor] = field(default_factory=list)
    like: Emitter | None = None
    drops: bool = False
    _numbers: dict[Any, Any] = field(default_factory=dict)
    _constants: dict[int, tuple[Any, Ref]] = field(default_factory=dict)

    # ---- numbers

    def number(self, value: Any) -> Any:
        """A number of the program; one that follows the batch as a `Size` or a `Factor`."""
        if not isinstance(value, torch.SymInt | torch.SymFloat):
            return value
        if symbolic_shapes.free_unbacked_symbols(value):
            raise Unknown("a number that follows from a tensor's values (.item())")
        expression = value.node.expr
        if expression not in self._numbers:
            self._numbers[expression] = self._number(expression, isinstance(value, torch.SymInt))
        return self._numbers[expression]

    def _number(self, expression: Any, is_whole: bool) -> Any:
        def at(batch: int) -> float:
            return float(expression.subs({s: batch for s in expression.free_symbols}))

        now, power = at(self.batch), power_of(at, self.batch)
        if len(expression.free_symbols) > 1 or power is None:
            self.scales = False
        if not power or not self.scales:
            return int(now) if is_whole else now
        return Size(int(now), power) if is_whole else Factor(now, power)

    def shape(self, value: torch.Tensor) -> tuple[int, ...]:
        """Of a tensor of the program."""
        return tuple(self.number(n) for n in value.shape)

    def ref(self, x: Any) -> Ref:
        """What is read as a tensor of the graph: a constant becomes a buffer."""
        if not isinstance(x, Known):
            return super().ref(x)
        if id(x) not in self._constants:
            self._constants[id(x)] = x, self._constant(x)
        return self._constants[id(x)][1]

    def _constant(self, x: Any) -> Ref:
        limit = x.step(self.batch) if isinstance(x, Varying) else None
        if limit is not None:  # the numbers of the batch's rows
            dtype = dtype_name(x.values[0].dtype)
            attrs = {"integer_start": 0, "integer_limit": limit, "integer_delta": x.steps}
            steps = self.op("arange", [], (Size(limit // x.steps, 1),), dtype, dtype=dtype, **attrs)
            return self.reshaped(steps, [steps.shape[0] if n > 1 else 1 for n in x.values[0].shape])
        try:
            part, wide, shape = (
                x.stretched(self.batch) if isinstance(x, Varying) else (x, None, x.shape)
            )
        except Follows:
            one, size = x.grown(self.batch)
            return self.same("scalar_mul", one, operand=size)
        if part.is_meta:
            raise Unknown("a number that is only known where the model has memory")
        value, dtype = uniform(part), dtype_name(part.dtype)
        if value is not None:
            return super().filled(shape, value, dtype)
        known = self.like.captured if self.like else {}
        same = (k for k, v in known.items() if v.dtype is part.dtype and torch.equal(v, part))
        key = next(same, f"#{len(known) + len(self.captured)}")
        self.captured[key] = part.contiguous()
        ref = self.declare(self.unique(key), tuple(part.shape), dtype)
        self.source(ref.name, "buffer", ref, {"name": key}, "")
        return ref if wide is None else self.reshaped(self.expanded(ref, wide), shape)

    def filled(self, shape: Sequence[int], value: Any, dtype: str) -> Any:
        return filled(shape, value, dtype, self.batch)

    # ---- indices

    def sizes(self, indices: Any) -> Sequence[int]:
        if isinstance(indices, Varying):
            return indices.shape(self.batch)
        return indices.shape

    def from_start(self, indices: Any, size: int) -> Ref:
        known = indices.values if isinstance(indices, Varying) else [indices]
        if isinstance(indices, Known) and not any(bool((v < 0).any()) for v in known):
            return self.ref(indices)
        return super().from_start(indices, size)

    def steps_along(self, indices: Any, size: int, step: int = 1) -> int | None:
        if not isinstance(indices, Known):
            return None
        value = indices.values[1] if isinstance(indices, Varying) else indices
        dims = [d - value.ndim for d, n in enumerate(value.shape) if n > 1]
        if isinstance(indices, Varying):
            counts = indices.step(self.batch) == size and indices.steps == step
        else:
            wanted = torch.arange(0, int(size), max(step, 1), dtype=value.dtype)
            counts = torch.equal(value.flatten(), wanted)
        return dims[0] if counts and len(dims) == 1 else None
