"""Gradients of tied parameters, which several parts of a pipeline hold: added up once a step.

Each holder makes its gradient whole: zero if only evaluation reads the parameter there. The first
rank of the first holder's stage receives one from the first rank of each other stage, adds them up
and sends the sum back; within a stage the sum goes to all ranks. Parts of one stage add theirs up
on the spot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...plans import Plan
from ...plans.figures import figures
from ..backend import Tensor, dtype_of
from ..state import ModelState, shard
from .groups import Groups


def exchange_gradients(
    plan: Plan,
    states: Mapping[int, ModelState],
    ranks: Sequence[Sequence[int]],
    groups: Groups,
) -> None:
    """`states`: of this rank's parts; `ranks`: of every part. All ranks call it."""
    backend, producers = groups.backend, plan.graph.producers
    for tensor, holders in sorted(figures(plan).travel.shared_params.items()):
        if tensor not in plan.graph.needs_grad:
            continue
        name = producers[tensor].attrs["name"]
        holding = [states[v] for v in holders if v in states]
        whole = None
        for state in holding:
            gradient = state.gather(name, state.gradients.get(name, _none(state, name)))
            whole = gradient if whole is None else whole + gradient
        # the first rank of each stage that holds it
        heads = list(dict.fromkeys(ranks[v][0] for v in holders))
        if backend.rank in heads and len(heads) > 1:
            assert whole is not None
            whole = _add_up(whole, heads, groups)
        if whole is not None:
            if groups.rank != 0:
                whole = backend.zeros(tuple(whole.shape), dtype_of(whole))
            summed = groups.world.all_reduce(whole)
            for state in holding:
                state.gradients[name] = shard(summed, state.stored[name].nd, groups)


def _none(state: ModelState, name: str) -> Tensor:
    local = state.stored[name].local
    return state.groups.backend.zeros(tuple(local.shape), dtype_of(local))


def _add_up(whole: Tensor, heads: Sequence[int], groups: Groups) -> Tensor:
    first, *others = heads
    backend, flat = groups.backend, whole.reshape(-1)
    size, dtype = flat.shape[0], dtype_of(whole)
    if backend.rank != first:
        backend.send(flat, first)
        return backend.receive(first, size, dtype).reshape(whole.shape)
    for head in others:
        flat = flat + backend.receive(head, size, dtype)
    for head in others:
        backend.send(flat, head)
    backend.wait()  # hooks and optimizers may change it in place
    return flat.reshape(whole.shape)
