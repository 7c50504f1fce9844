"""Makes nn.Graph recompute checkpointed blocks at the time that the plan assumes.

nn.Graph copies a block's forward operators, and lets the copies wait for whatever precedes their
first reader in the backward pass. Where that reader needs no gradient, as a sum in the backward
pass of a variance, its predecessor is an operator of the forward pass: all blocks are then
recomputed at once, and no memory is saved. This module makes the copies wait for the gradient of
the block's outputs, as well as those operators of the block's backward pass that take no gradient,
and lets what follows the block read the block's first results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

COPY = "Sys-Checkpointing-Fake-Fw-Op_"  # how OneFlow names what runs again
LOSS_GRADIENT = "ones_like-"  # and the operator that starts the backward pass

Ops = Mapping[str, Any]


def run_again_late(job: Any, prefixes: Iterable[str]) -> None:
    """Let the recomputation of each block wait for the gradient of the block's outputs.

    prefixes: of the names of each block's operators
    """
    prefixes = tuple(prefixes)
    ops = {op.name: op for op in job.net.op}
    for prefix in prefixes:
        _read_first_results(ops, prefix)
    sources = {name: list(_sources(op)) for name, op in ops.items()}
    readers: dict[str, list[str]] = {name: [] for name in ops}
    for name, found in sources.items():
        for source in found:
            readers[source].append(name)
    starts = [name for name in ops if name.startswith(LOSS_GRADIENT)]
    forward, backward = _reached(sources, starts), _reached(readers, starts)
    for prefix in prefixes:
        members = [name for name in ops if name.removeprefix(COPY).startswith(prefix)]
        again = [name for name in members if name not in forward and name not in backward]
        after = _reached(readers, again)
        gradients = {
            source
            for name in members
            if name in backward
            for source in sources[name]
            if source in backward and source not in members and source not in after
        }
        for name in again:
            if gradients and not any(source in again for source in sources[name]):
                del ops[name].ctrl_in_op_name[:]
                ops[name].ctrl_in_op_name.extend(sorted(gradients))


def _read_first_results(ops: Ops, prefix: str) -> None:
    """Restore the first results as inputs of operators outside a block that nn.Graph redirected."""
    for name, op in ops.items():
        if not name.removeprefix(COPY).startswith(prefix):
            for values in _inputs(op):
                values[:] = [
                    v.removeprefix(COPY) if v.startswith(COPY + prefix) else v for v in values
                ]


def _reached(following: Mapping[str, Iterable[str]], starts: Iterable[str]) -> set[str]:
    """`starts` and everything that depends on them, directly or not."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        for name in following[waiting.pop()]:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def _inputs(op: Any) -> Iterator[Any]:
    """The lists of values that an operator reads, each named "operator/output"."""
    if op.HasField("user_conf"):
        for values in op.user_conf.input.values():
            yield values.s


def _sources(op: Any) -> Iterator[str]:
    """The operators whose results an operator reads."""
    for values in _inputs(op):
        for value in values:
            yield value.rpartition("/")[0]
