"""Removes from a job the operators without effect and those whose results nobody reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from .batch import Scaling
from .canonical import is_no_op
from .job.raw import RawJob, RawOp


@dataclass(frozen=True)
class Simplified:
    """The operators that remain, and the job's roots (outputs, then the loss) renamed likewise."""

    ops: tuple[RawOp, ...]
    roots: tuple[str, ...]


def gradient_tensors(job: RawJob, trainable: Collection[str]) -> frozenset[str]:
    """Float tensors computed from the variables `trainable`: a gradient could flow through them."""
    found = set(trainable)
    for op in job.ops:
        if any(name in found for name in op.reads):
            found.update(name for name in op.makes if job.specs[name].is_float)
    return frozenset(found)


def stops_gradient(op: RawOp, differentiable: Collection[str]) -> bool:
    """True if `op` is in a gradient-free region and a gradient would flow through it elsewhere."""
    return op.role == "n" and any(name in differentiable for name in op.reads)


def simplify(
    job: RawJob, roots: Sequence[str], scaling: Scaling, differentiable: Collection[str]
) -> Simplified:
    """The operators of `job` that `roots` need or that change a buffer, no-ops bypassed."""
    bypassed: dict[str, str] = {}
    ops: list[RawOp] = []
    for op in job.ops:
        op = _renamed(op, bypassed)
        if op.reads and op.makes and not stops_gradient(op, differentiable):
            source, result = op.reads[0], op.makes[0]
            same_batch = scaling.dims.get(source) == scaling.dims.get(result)
            if same_batch and is_no_op(op, job.specs[source], job.specs[result]):
                bypassed[result] = source
                continue
        ops.append(op)
    roots = tuple(bypassed.get(name, name) for name in roots)
    return Simplified(_live(ops, roots), roots)


def _renamed(op: RawOp, names: dict[str, str]) -> RawOp:
    if not any(name in names for name in op.reads):
        return op
    inputs = {key: tuple(names.get(n, n) for n in value) for key, value in op.inputs.items()}
    return replace(op, inputs=inputs)


def _changes_a_buffer(op: RawOp) -> bool:
    """True of a BatchNorm in training, which moves its statistics whoever reads its result."""
    return op.kind == "normalization" and "moving_mean" in op.inputs and op.attrs["training"]


def _live(ops: Sequence[RawOp], roots: Sequence[str]) -> tuple[RawOp, ...]:
    needed = set(roots)
    kept = []
    for op in reversed(ops):
        if _changes_a_buffer(op) or any(name in needed for name in op.makes):
            needed.update(op.reads)
            kept.append(op)
    return tuple(reversed(kept))
