"""Finds how a traced job depends on the batch, from a job at a batch and one at twice that batch.

A size or factor that is equal in both does not depend on the batch; one that doubles is
proportional to it; a float that halves is inversely proportional (a mean's 1/rows). Anything else
means that the job is valid for its own batch only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....graph.builder import Factor, Size
from ...nested import Slot, map_leaves, numbers
from .job.meta import is_storage_free
from .job.raw import RANDOM, RawJob, RawOp


@dataclass(frozen=True)
class Scaling:
    """Batch dims of tensors and batch exponents of attributes, by the job's names.

    `holds` is False if the job is valid for its own batch only; then both are empty.
    structure: of the model's result, where numbers that follow the batch know how
    """

    holds: bool = False
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    attrs: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    structure: Any = None


def compare(once: RawJob, twice: RawJob) -> Scaling:
    """The scaling between the job at a batch and the job at twice the batch."""
    if len(once.ops) != len(twice.ops):
        return Scaling()
    dims: dict[str, tuple[int, ...]] = {}
    attrs: dict[str, dict[str, tuple[int, ...]]] = {}
    names: dict[str, str] = {}  # of the one job -> of the other
    for a, b in zip(once.ops, twice.ops, strict=True):
        if not _same_wiring(a, b, names):
            return Scaling()
        for name in a.makes:
            spec, doubled = once.specs[name], twice.specs[names[name]]
            exponents = _exponents(spec.shape, doubled.shape)
            if exponents is None or spec.dtype != doubled.dtype:
                return Scaling()
            dims[name] = tuple(d for d, exponent in enumerate(exponents) if exponent)
        for key, value in a.attrs.items():
            if key in RANDOM:
                continue
            exponents = _exponents(value, b.attrs.get(key))
            if exponents is None:
                return Scaling()
            if any(exponents):
                attrs.setdefault(a.name, {})[key] = exponents
    return Scaling(True, dims, attrs)


def sized(once: Any, twice: Any) -> Any:
    """`once`, a tree of slots and values, with numbers that know how they follow the batch.

    ValueError if one does so in another way than attributes may.
    """
    others = iter(numbers(twice))

    def follow(x: Any) -> Any:
        if isinstance(x, Slot):
            return x
        exponents = _exponents(x, next(others, None))
        if exponents is None:
            raise ValueError(f"{x} follows the batch in another way")
        if not any(exponents):
            return x
        return Size(x, *exponents) if isinstance(x, int) else Factor(x, *exponents)

    return map_leaves(once, (Slot, int, float), follow)


def same_values(once: Mapping[str, Any], twice: Mapping[str, Any]) -> bool:
    """True if both jobs captured equal tensors, so that none depends on the batch."""
    return once.keys() == twice.keys() and all(
        _equal(tensor, twice[name]) for name, tensor in once.items()
    )


def _equal(a: Any, b: Any) -> bool:
    """True also of tensors that have no values to compare."""
    return is_same(a, b) or (a.shape == b.shape and is_storage_free(a) and is_storage_free(b))


def is_same(a: Any, b: Any) -> bool:
    """True of one tensor, and of two of equal values."""
    if a is b or (a.shape, a.dtype) != (b.shape, b.dtype):
        return a is b
    if is_storage_free(a) or is_storage_free(b):
        return False
    return np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())


def _same_wiring(a: RawOp, b: RawOp, names: dict[str, str]) -> bool:
    """Whether `b` is as `a` of the other job is; adds what they make to `names`.

    Only sources have equal names: others count calls, and those of layers that are alike may run
    in one of the jobs alone.
    """
    if (a.kind, a.inputs.keys(), a.attrs.keys()) != (b.kind, b.inputs.keys(), b.attrs.keys()):
        return False
    if [len(made) for made in a.outputs.values()] != [len(made) for made in b.outputs.values()]:
        return False
    if a.outputs.keys() != b.outputs.keys() or (a.call < 0 and a.makes != b.makes):
        return False
    names.update(zip(a.makes, b.makes, strict=True))
    reads = ((tuple(names.get(n, n) for n in x), b.inputs[key]) for key, x in a.inputs.items())
    return all(own == other for own, other in reads)


def _exponents(once: Any, twice: Any) -> tuple[int, ...] | None:
    """Batch exponents of a value's elements; None if one depends on the batch in another way."""
    if type(once) is not type(twice):
        return None
    if not isinstance(once, tuple):
        once, twice = (once,), (twice,)
    if len(once) != len(twice):
        return None
    found = [_exponent(a, b) for a, b in zip(once, twice, strict=True)]
    return None if None in found else tuple(e for e in found if e is not None)


def _exponent(once: Any, twice: Any) -> int | None:
    if once == twice:
        return 0
    if isinstance(once, (bool, str)) or isinstance(twice, (bool, str)):
        return None
    if math.isclose(twice, 2 * once, rel_tol=1e-9):
        return 1
    if isinstance(once, float) and math.isclose(2 * twice, once, rel_tol=1e-9):
        return -1
    return None
