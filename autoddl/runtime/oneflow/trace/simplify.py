"""Removes from a job the operators without effect and those whose results nobody reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .batch import Scaling
from .canonical import apart, is_no_op
from .job.raw import RawJob, RawOp


@dataclass(frozen=True)
class Simplified:
    """The operators that remain, and the job's roots (outputs, then the loss) renamed likewise."""

    ops: tuple[RawOp, ...]
    roots: tuple[str, ...]


def stop_gradients(job: RawJob, trainable: Collection[str]) -> tuple[RawJob, dict[str, str]]:
    """`job` with `stop_gradient` where gradients of the variables `trainable` are to end.

    OneFlow's lazy mode has no such operator; the recorder marks what runs in a gradient-free region
    (`detach`, `no_grad`) by its scope. Also gives the new tensors, each with what it equals.
    """
    if all(op.role != "n" for op in job.ops):
        return job, {}
    flows, stopped = set(trainable), dict[str, str]()
    ops: list[RawOp] = []
    specs = dict(job.specs)
    for op in job.ops:
        if op.role == "n":
            for name in op.reads:
                if name not in flows or name in stopped:
                    continue
                new = stopped[name] = f"{name}/stopped"
                specs[new] = specs[name]
                reads, makes = {"in": (name,)}, {"out": (new,)}
                ops.append(RawOp(new, "stop_gradient", op.call, "n", reads, makes))
            op = op.renamed(stopped)
        elif not flows.isdisjoint(op.reads):
            flows.update(name for name in op.makes if specs[name].is_float)
        ops.append(op)
    return RawJob(tuple(ops), specs), {new: name for name, new in stopped.items()}


def simplify(job: RawJob, roots: Sequence[str], scaling: Scaling) -> Simplified:
    """The operators of `job` that `roots` need or that change a buffer, no-ops bypassed."""
    bypassed: dict[str, str] = {}
    ops: list[RawOp] = []
    for op in apart(job.ops):
        op = op.renamed(bypassed)
        if op.reads and op.makes:
            source, result = op.reads[0], op.makes[0]
            same_batch = scaling.dims.get(source) == scaling.dims.get(result)
            if same_batch and is_no_op(op, job.specs[source], job.specs[result]):
                bypassed[result] = source
                continue
        ops.append(op)
    roots = tuple(bypassed.get(name, name) for name in roots)
    return Simplified(_live(ops, roots), roots)


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
