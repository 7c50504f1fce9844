"""What each layer of a plan would lose by its next best topology.

Only the layer's own strategy is exchanged, everything else stays as it is: the cheapest strategy of
another topology that still fits the memory is what the plan shows beside the layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Op
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from ..search.problem import Choice, Table
from .layers import heavy_groups, topology, topology_letters
from .tables.group_table import GroupTable
from .tables.tables import Tables


@dataclass(frozen=True)
class _Line:
    """All strategies of a layer, each with the seconds and bytes of its group and its edges.

    now: the number of the strategy that the plan has
    """

    table: GroupTable
    now: int
    cost: Table
    memory: Table


def next_best(tables: Tables, choice: Choice, memory: float) -> dict[int, tuple[str, float]]:
    """For each heavy group the cheapest other topology that fits: (topology, seconds more).

    The tables may have few of a group's strategies; others are not considered. A group without
    another topology that fits is not in the result.
    """
    heavy = heavy_groups(tables)
    kinds: dict[tuple[int, int], _Topologies] = {}
    known: dict[tuple[int, int], tuple[str, float] | None] = {}  # equal lines are compared once
    found = {}
    numbers = [
        [other.name for other in tables.grouping.groups[group].ops].index(op.name)
        for group, op in heavy
    ]
    lines = _lines(tables, choice, heavy)
    for (group, op), number, line in zip(heavy, numbers, lines, strict=True):
        key = id(line.table), number
        if key not in kinds:
            kinds[key] = _Topologies.of(line.table, number, op, tables.model.cluster.mesh)
        which = id(line), number
        if which not in known:
            fits = memory + line.memory - line.memory[line.now] <= tables.problem.memory_limit
            known[which] = _best_other(line, kinds[key], fits)
        best = known[which]
        if best is not None:
            found[group] = best
    return found


def _best_other(
    line: _Line, topologies: _Topologies, fits: NDArray[np.bool_]
) -> tuple[str, float] | None:
    """The cheapest topology other than the plan's among what fits, and how much slower it is."""
    other = topologies.of_strategy != topologies.of_strategy[line.now]
    candidates = np.where(fits & other, line.cost, np.inf)
    best = int(np.argmin(candidates))
    if not np.isfinite(candidates[best]):
        return None
    name = topologies.names[topologies.of_strategy[best]]
    return name, float(candidates[best] - line.cost[line.now])


@dataclass(frozen=True)
class _Topologies:
    """The distinct topologies of a group's strategies, and the one that each strategy has."""

    names: list[str]
    of_strategy: NDArray[np.int64]

    @staticmethod
    def of(table: GroupTable, number: int, op: Op, mesh: Mesh) -> _Topologies:
        """As `op`, which is operator `number` of the group, tells them."""
        letters = _letters(table, number, op)
        every = sorted(set(letters))
        codes = np.array([every.index(letter) for letter in letters], dtype=np.int8)
        rows, row_of = np.unique(codes[table.assign], axis=0, return_inverse=True)
        texts = [topology(tuple(every[code] for code in row), mesh) for row in rows.tolist()]
        names = list(dict.fromkeys(texts))
        name_of = np.array([names.index(text) for text in texts], dtype=np.int64)
        return _Topologies(names, name_of[row_of.ravel()])


def _lines(tables: Tables, choice: Choice, heavy: Sequence[tuple[int, Op]]) -> list[_Line]:
    """Equal layers with equal neighbours share one."""
    problem, chosen = tables.problem, choice.tolist()
    variables = [tables.variables[group] for group, _ in heavy]
    first: dict[Hashable, int] = {}

    def alike(variable: int) -> int:
        around = [(edge, is_first, chosen[n]) for n, edge, is_first in problem.neighbours[variable]]
        key = problem.nodes[variable], chosen[variable], *around
        return first.setdefault(key, variable)

    which = [alike(variable) for variable in variables]
    distinct = list(first.values())
    lines = [
        _Line(
            tables.groups[problem.nodes[variable]],
            chosen[variable],
            *problem.line(chosen, variable),
        )
        for variable in distinct
    ]
    line_of = dict(zip(distinct, lines, strict=True))
    return [line_of[variable] for variable in which]


def _letters(table: GroupTable, number: int, op: Op) -> list[str]:
    """The topology letter of each composite signature, for operator `number` of the group."""
    letters = []
    for composite in table.composites:
        signature = composite.signatures[number]
        ins = tuple(NdSbp((p,)) for p in signature.ins)
        outs = tuple(NdSbp((p,)) for p in signature.outs)
        letters.append(topology_letters(op, ins, outs)[0])
    return letters
