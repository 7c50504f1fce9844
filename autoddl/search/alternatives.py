"""For each layer of a solution: the next best topology with everything else as it is."""

from __future__ import annotations

import numpy as np

from ..graph import Op
from ..sbp.placement import NdSbp
from .group_table import GroupTable
from .layers import heavy_groups, topology, topology_letters
from .problem import Choice
from .tables import Tables


def next_best(tables: Tables, choice: Choice, memory: float) -> dict[int, tuple[str, float]]:
    """Heavy group -> (topology, seconds more) of the cheapest other topology that fits.

    Of the strategies that the tables have, which may be few (`symmetric`).
    """
    mesh = tables.model.cluster.mesh
    names: dict[int, list[str]] = {}
    found = {}
    for group, op in heavy_groups(tables):
        variable = tables.variables[group]
        table_number = tables.problem.nodes[variable]
        if table_number not in names:
            number = [o.name for o in tables.grouping.groups[group].ops].index(op.name)
            table = tables.table_of(group)
            letters = _letters(table, number, op)
            names[table_number] = [
                topology(tuple(letters[c] for c in row), mesh) for row in table.assign
            ]
        topologies = names[table_number]
        now = choice[variable]
        cost, mem = tables.problem.line(choice, variable)
        fits = memory + mem - mem[now] <= tables.problem.memory_limit
        other = np.array([t != topologies[now] for t in topologies])
        candidates = np.where(fits & other, cost, np.inf)
        best = int(np.argmin(candidates))
        if np.isfinite(candidates[best]):
            found[group] = (topologies[best], float(candidates[best] - cost[now]))
    return found


def _letters(table: GroupTable, number: int, op: Op) -> list[str]:
    """The topology letter of each composite signature, for operator `number` of the group."""
    letters = []
    for composite in table.composites:
        signature = composite.signatures[number]
        ins = tuple(NdSbp((p,)) for p in signature.ins)
        outs = tuple(NdSbp((p,)) for p in signature.outs)
        letters.append(topology_letters(op, ins, outs)[0])
    return letters
