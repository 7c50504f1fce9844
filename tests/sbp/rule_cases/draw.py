"""Inputs: shapes, dtypes, and what their values are drawn from."""

import numpy as np

from autoddl.sbp.layout import TensorSpec

from .case import Arg


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
