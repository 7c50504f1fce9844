"""Makes a schedule by name: the stages' orders of computation, and their transfers.

make_schedule("1f1b", stages=4, micro_batches=8)
"""

from __future__ import annotations

from collections.abc import Iterable

from .costs import Costs
from .orders import ORDERS
from .schedule import Flow, Schedule, chain, check_flows
from .transfers import with_transfers

SCHEDULES = tuple(ORDERS)


def make_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    chunks: int = 1,
    delay: int | None = None,
    flows: Iterable[Flow] | None = None,
    costs: Costs | None = None,
    overlap: bool = True,
) -> Schedule:
    """The schedule `name` (one of `SCHEDULES`) for `stages` stages.

    chunks: parts of the model on every stage; only interleaved schedules have more than one
    delay:  how late the weight half of a backward pass runs (see `orders`); None: not separate
    flows:  between which parts tensors travel; None: between neighbours
    costs:  by which the transfers are ordered; None: equal passes and free transfers

    Raises ValueError if the name is unknown or the numbers do not fit.
    """
    order = ORDERS.get(name)
    if order is None:
        raise ValueError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")
    for what, n in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if n < 1:
            raise ValueError(f"{what} must be at least 1, got {n}")
    if chunks > 1 and name != "interleaved-1f1b":
        raise ValueError(f"{name} has one chunk a stage, got {chunks}; use interleaved-1f1b")
    if delay is not None and delay < 0:
        raise ValueError(f"delay must be 0 or more micro-batches, got {delay}")
    orders = [order(i, stages, micro_batches, chunks, delay) for i in range(stages)]
    parts = stages * chunks
    checked = chain(parts) if flows is None else check_flows(flows, parts)
    schedule = Schedule(
        name,
        micro_batches,
        chunks,
        delay is None and name != "zb-h1",
        checked,
        tuple(o.stash for o in orders),
        tuple(o.actions for o in orders),
    )
    return with_transfers(schedule, costs or Costs.uniform(parts, checked), overlap)
