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


def f(*shape: int) -> Arg:
    """Any float."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.standard_normal(s))


def positive(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: rng.uniform(1.1, 3.0, s))


def unit(*shape: int) -> Arg:
    """Between 0.1 and 0.9: probabilities, and arguments of arc functions."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.uniform(0.1, 0.9, s))


def shares(*shape: int) -> Arg:
    """Positive, with sum 1 over the last dim: a distribution over classes."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.dirichlet(np.ones(s[-1]), s[:-1]))


def index(n: int, *shape: int, start: int = 0) -> Arg:
    """n integers from `start`."""
    spec = TensorSpec(shape, "int64")
    return Arg(spec, lambda rng, s: rng.integers(start, start + n, s))


def symbols(n: int, *shape: int) -> Arg:
    """Integers below n, but not zero."""
    return index(n - 1, *shape, start=1)


def rising(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: np.sort(rng.standard_normal(s)))


def nans(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: np.where(rng.random(s) < 0.2, np.nan, 1.0))


def counts(n: int, *shape: int, sums: bool = False) -> Arg:
    """n, or its multiples."""
    spec = TensorSpec(shape, "int32")
    return Arg(spec, lambda rng, s: n * np.arange(1, s[0] + 1) if sums else np.full(s, n))


def flags(*shape: int) -> Arg:
    return Arg(TensorSpec(shape, "bool"), lambda rng, s: rng.random(s) < 0.5)
