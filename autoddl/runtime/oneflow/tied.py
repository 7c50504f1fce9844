"""Gradients of tied parameters, which several parts of a pipeline hold: added up once a step.

Each holder makes its gradient whole. The first rank of the first holder's stage receives one from
the first rank of each other stage, adds them up and sends the sum back; within a stage the sum goes
to all ranks. Parts of one stage add theirs up on the spot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import oneflow as flow

from ...plans.staged import StagedPlan
from ..jobs.guard import rank
from .groups import Groups
from .part import Part
from .redistribute import prepare
from .routes import to_broadcast
from .state import Stored, from_rank_0, set_gradient, shard


def exchange_gradients(
    plan: StagedPlan, parts: Mapping[int, Part], ranks: Sequence[Sequence[int]], groups: Groups
) -> None:
    """`parts`: this rank's; `ranks`: of every part. All ranks call it."""
    producers = plan.cut.graph.producers
    for tensor, holders in sorted(plan.travel.shared_params.items()):
        name = producers[tensor].attrs["name"]
        stored = [parts[v].state.stored[name] for v in holders if v in parts]
        whole = None
        for held in stored:
            gradient = _whole_gradient(held, groups)
            whole = gradient if whole is None else whole + gradient
        # the first rank of each stage that holds it
        heads = list(dict.fromkeys(ranks[v][0] for v in holders))
        if rank() in heads and len(heads) > 1:
            assert whole is not None
            whole = _add_up(whole, heads)
        if whole is not None:
            summed = from_rank_0(whole, groups)
            for held in stored:
                set_gradient(held, shard(summed, held.nd, groups))


def _whole_gradient(held: Stored, groups: Groups) -> flow.Tensor:
    local = held.parameter.grad
    local = local.to_local() if local.is_global else local
    return prepare(to_broadcast(held.nd), held.shape, held.nd, groups)(local)


def _add_up(whole: flow.Tensor, heads: Sequence[int]) -> flow.Tensor:
    first, *others = heads

    def receive(source: int) -> flow.Tensor:
        return flow.comm.recv(
            source, shape=tuple(whole.shape), dtype=whole.dtype, device=whole.device
        )

    if rank() != first:
        flow.comm.send(whole, first, send_meta=False)
        return receive(first)
    for head in others:
        whole = whole + receive(head)
    for head in others:
        flow.comm.send(whole, head, send_meta=False)
    return whole
