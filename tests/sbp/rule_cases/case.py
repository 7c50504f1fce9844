"""An operator and how its inputs are drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.signature import OpSpec

Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]


@dataclass(frozen=True)
class Arg:
    """An input: its spec, and how its values are drawn."""

    spec: TensorSpec
    draw: Draw


@dataclass(frozen=True)
class Case:
    """An operator and its inputs, as arrays of the specs' dtypes."""

    id: str
    op: OpSpec
    args: tuple[Arg, ...]

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        return [np.asarray(a.draw(rng, a.spec.shape)).astype(a.spec.dtype) for a in self.args]


def out(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def case(name: str, kind: str, args: tuple[Arg, ...], *outs: TensorSpec, **attrs: Any) -> Case:
    label = f"{kind}-{name}" if name else kind
    return Case(label, OpSpec(kind, attrs, tuple(a.spec for a in args), outs), args)
