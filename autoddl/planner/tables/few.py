"""Few of the strategies of each group, for a plan that is wanted soon.

`Placed` keeps those of placements that are known already, as of the stages that a partition was
chosen by. What is found among them is not compared with the other strategies; no plan takes less
than their computation (`computation_s`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.placed import PlannedOp
from .group_table import GroupTable
from .groups import Group
from .tables import Rows, TableBuilder


@dataclass(frozen=True)
class Placed:
    """Those strategies that place a group's operators as one of `plans` does.

    plans: operator -> its placements; of a group with other operators all strategies stay
    """

    plans: Sequence[Mapping[str, PlannedOp]]

    def __call__(self, builder: TableBuilder) -> list[Rows]:
        tables = builder.group_tables
        kept = [np.zeros(len(table.assign), dtype=bool) for table in tables]
        known: set[tuple[int, tuple[PlannedOp | None, ...]]] = set()
        for group, node in zip(builder.grouping.groups, builder.nodes, strict=True):
            for plan in self.plans:
                placed = tuple(plan.get(op.name) for op in group.ops)
                if (node, placed) not in known:
                    known.add((node, placed))
                    kept[node] |= _like(tables[node], group, placed)
        return [np.flatnonzero(mask if mask.any() else ~mask) for mask in kept]


def _like(
    table: GroupTable, group: Group, placed: Sequence[PlannedOp | None]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mask of the strategies with these placements of inputs and outputs."""
    mask = np.ones(len(table.assign), dtype=bool)
    for number, own in enumerate(placed):
        if own is None:
            continue
        for index in range(len(group.ops[number].inputs)):
            codes = table.codes(lambda c, n=number, i=index: c.signatures[n].ins[i])
            mask &= (codes == own.ins[index].codes).all(axis=1)
        for index in range(len(group.ops[number].outputs)):
            codes = table.codes(lambda c, n=number, i=index: c.signatures[n].outs[i])
            mask &= (codes == own.outs[index].codes).all(axis=1)
    return mask


def computation_s(builder: TableBuilder) -> float:
    """Seconds of computation that no choice of the strategies of a prepared builder falls below."""
    least = [float(table.compute_s.min()) for table in builder.group_tables]
    return builder.micro_batches * sum(least[node] for node in builder.nodes)
