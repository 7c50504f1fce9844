"""Opaque calls: submodules that run unchanged, as one operator of the graph.

A submodule call is opaque if an operator in it is unknown, or if the user declared the submodule
batch-wise. Its operators collapse into one of kind `opaque`, whose inputs are the call's tensor
arguments and the parameters that it reads, and whose outputs are the tensors that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow
import oneflow.nn as nn

from ....graph.hints import is_batchwise
from ...kernel import OpaqueFn
from ...traced import OpaqueCall, places_of
from .job.job import LazyJob
from .job.raw import RawJob, RawOp, role_of
from .job.recorder import Call


@dataclass(frozen=True)
class Collapsed:
    """A job in which the opaque calls are single operators.

    calls:   operator name -> what the runtime repeats
    leaking: calls that share tensors with their surroundings past their arguments and results;
             the call around each must be opaque instead
    """

    job: RawJob
    calls: Mapping[str, OpaqueCall] = field(default_factory=dict)
    leaking: tuple[int, ...] = ()


def collapse(
    raw: RawJob, lazy: LazyJob, model: nn.Module, loss: Callable[..., Any] | None
) -> Collapsed:
    """Replace each boundary call's operators by one `opaque` operator."""
    owner = _boundary_calls(lazy.calls)
    if not owner:
        return Collapsed(raw)
    inner: dict[int, list[RawOp]] = {call: [] for call in set(owner.values())}
    for op in raw.ops:
        if op.call in owner:
            inner[owner[op.call]].append(op)
    last = {ops[-1].name: call for call, ops in inner.items() if ops}
    places, named = places_of(model.modules()), dict(model.named_parameters())
    kept: list[RawOp] = []
    calls: dict[str, OpaqueCall] = {}
    leaking: list[int] = []
    for op in raw.ops:
        if op.call not in owner:
            kept.append(op)
        elif op.name in last:
            call = last[op.name]
            record = lazy.calls[call]
            function = _callee(record, model, loss)
            merged, params, is_closed = _merge(inner[call], call, lazy, is_batchwise(function))
            kept.append(merged)
            if not is_closed:
                leaking.append(call)
            names = tuple(lazy.params[name] for name in params)
            calls[merged.name] = OpaqueCall(
                record.path,
                function,
                record.arguments,
                record.num_arguments,
                names,
                tuple(places[id(named[name])] for name in names),
            )
    leaking += _read_from_outside(kept, inner)
    job = RawJob(tuple(kept), raw.specs)
    return Collapsed(job, calls, tuple(dict.fromkeys(leaking)))


def _boundary_calls(calls: Sequence[Call]) -> dict[int, int]:
    """Call index -> the boundary call that it is or lies in."""
    owner: dict[int, int] = {}
    for index, call in enumerate(calls):
        if call.is_boundary and call.operator is None:
            owner[index] = index
        elif call.parent in owner:
            owner[index] = owner[call.parent]
    return owner


def _merge(
    ops: Sequence[RawOp], call: int, lazy: LazyJob, batchwise: bool
) -> tuple[RawOp, tuple[str, ...], bool]:
    """The opaque operator of a call, its parameters, and whether nothing else flows in."""
    record = lazy.calls[call]
    markers = [op for op in ops if op.role == "b"]
    arguments = markers[: record.num_arguments]
    results = markers[record.num_arguments :]
    assert len(results) == record.num_results
    made = {name for op in ops for name in op.makes}
    captured = lazy.captured.keys() | lazy.buffers.keys()
    read = dict.fromkeys(name for op in ops if op not in arguments for name in op.reads)
    params = tuple(name for name in read if name in lazy.params)
    is_closed = all(name in made or name in lazy.params or name in captured for name in read)
    merged = RawOp(
        f"c{call}-opaque",
        "opaque",
        call,
        role_of(ops),
        {"args": tuple(n for op in arguments for n in op.reads), "params": params},
        {"results": tuple(name for op in results for name in op.makes)},
        {"num_args": record.num_arguments, "batchwise": batchwise},
    )
    return merged, params, is_closed


def _read_from_outside(kept: Sequence[RawOp], inner: Mapping[int, Sequence[RawOp]]) -> list[int]:
    """Calls of which an inner tensor, not a result, is read elsewhere."""
    hidden = {name: call for call, ops in inner.items() for op in ops for name in op.makes}
    for op in kept:
        for name in op.makes:
            hidden.pop(name, None)
    return [hidden[name] for op in kept for name in op.reads if name in hidden]


def _callee(record: Call, model: nn.Module, loss: Callable[..., Any] | None) -> Callable[..., Any]:
    if record.parent < 0 and record.path:
        assert loss is not None
        return loss
    return dict(model.named_modules())[record.path]


def as_kernel(call: OpaqueCall) -> OpaqueFn:
    """Run `call` in training or evaluation mode; what is random in it comes from the seed."""

    def run(tensors: Sequence[flow.Tensor], training: bool, seed: int) -> list[flow.Tensor]:
        with _seeded(seed if training else None):
            return call.call(tensors, flow.Tensor, training)

    return run


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """OneFlow's random numbers from `seed`; the program's own sequence goes on afterwards."""
    if seed is None:
        yield
        return
    generator = flow.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(seed)
        yield
    finally:
        generator.set_state(before)
