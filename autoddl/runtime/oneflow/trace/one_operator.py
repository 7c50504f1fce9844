"""Puts operators in the place of what the calls of `OneOperator`s issued."""

from __future__ import annotations

from collections.abc import Sequence

from .job.raw import RawJob, RawOp, role_of
from .job.recorder import Call


def with_operators(raw: RawJob, calls: Sequence[Call]) -> RawJob:
    """The job in which each call of a `OneOperator` is that operator, not what it issued."""
    inner = {call: [] for call, record in enumerate(calls) if record.operator is not None}
    for op in raw.ops:
        if op.call in inner:
            inner[op.call].append(op)
    last = {ops[-1].name for ops in inner.values()}
    ops: list[RawOp] = []
    for op in raw.ops:
        if op.call not in inner:
            ops.append(op)
        elif op.name in last:
            ops.append(_merged(inner[op.call], calls[op.call]))
    return RawJob(tuple(ops), raw.specs)


def _merged(ops: Sequence[RawOp], record: Call) -> RawOp:
    operator, call = record.operator, ops[-1].call
    assert operator is not None
    markers = [op for op in ops if op.role == "b"]
    arguments, results = markers[: record.num_arguments], markers[record.num_arguments :]
    assert len(results) == record.num_results == 1, operator.kind
    return RawOp(
        f"c{call}-{operator.kind}",
        operator.kind,
        call,
        role_of(ops),
        {"args": tuple(name for op in arguments for name in op.reads)},
        {"results": results[0].makes},
        operator.attrs(),
    )
