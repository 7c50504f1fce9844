"""For each layer of a solution: the next best topology with everything else as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Op
from ..sbp.placement import NdSbp
from .group_table import GroupTable
from .layers import heavy_groups, topology, topology_letters
from .problem import Choice, Table
from .tables import Tables


@dataclass(frozen=True)
class _Line:
    """Strategies of a layer with the seconds and bytes of their group and its edges.

    now: the chosen one
    """

    table: GroupTable
    now: int
    cost: Table
    memory: Table


def next_best(tables: Tables, choice: Choice, memory: float) -> dict[int, tuple[str, float]]:
    """Heavy group -> (topology, seconds more) of the cheapest other topology that fits.

    Of the strategies that the tables have, which may be few, and of `tables.others`.
    """
    mesh = tables.model.cluster.mesh
    heavy = heavy_groups(tables)
    names: dict[tuple[int, int], list[str]] = {}
    found = {}
    for (group, op), line in zip(heavy, _lines(tables, choice, heavy), strict=True):
        number = [o.name for o in tables.grouping.groups[group].ops].index(op.name)
        key = id(line.table), number
        if key not in names:
            letters = _letters(line.table, number, op)
            names[key] = [
                topology(tuple(letters[c] for c in row), mesh) for row in line.table.assign
            ]
        topologies, now = names[key], line.now
        fits = memory + line.memory - line.memory[now] <= tables.problem.memory_limit
        other = np.array([t != topologies[now] for t in topologies])
        candidates = np.where(fits & other, line.cost, np.inf)
        best = int(np.argmin(candidates))
        if np.isfinite(candidates[best]):
            found[group] = (topologies[best], float(candidates[best] - line.cost[now]))
    return found


def _lines(tables: Tables, choice: Choice, heavy: Sequence[tuple[int, Op]]) -> list[_Line]:
    variables = [tables.variables[group] for group, _ in heavy]
    if tables.others is not None:
        return _among_others(tables, choice, variables)
    return [
        _Line(
            tables.groups[tables.problem.nodes[variable]],
            int(choice[variable]),
            *tables.problem.line(choice, variable),
        )
        for variable in variables
    ]


def _among_others(tables: Tables, choice: Choice, variables: Sequence[int]) -> list[_Line]:
    """Of the others and what the tables have; equal layers with equal neighbours once."""
    assert tables.others is not None
    problem, builder = tables.problem, tables.others.builder
    heavy = {problem.nodes[variable] for variable in variables}
    rows = [
        np.union1d(kept, more) if number in heavy else kept
        for number, (kept, more) in enumerate(
            zip(tables.others.kept, tables.others.rows, strict=True)
        )
    ]
    wide = builder.among(rows, builder.prices)

    def at(variable: int) -> int:
        table = problem.nodes[variable]
        return int(np.searchsorted(rows[table], tables.others.kept[table][choice[variable]]))

    lines: dict[tuple[object, ...], list[tuple[int, np.ndarray, np.ndarray]]] = {}
    keys = []
    for variable in variables:
        every = np.arange(len(rows[problem.nodes[variable]]))
        asked = []
        key: list[object] = [problem.nodes[variable], at(variable)]
        for other, edge, is_first in problem.neighbours[variable]:
            one = np.array([at(other)])
            asked.append((edge, every, one) if is_first else (edge, one, every))
            key += edge, is_first, at(other)
        keys.append(tuple(key))
        lines[keys[-1]] = asked
    priced = iter(wide.lines([line for asked in lines.values() for line in asked]))
    _, nodes = wide.seconds((), sorted(heavy))
    found = {}
    for key, asked in lines.items():
        number, now = key[0], key[1]
        assert isinstance(number, int) and isinstance(now, int)
        table = wide.group_tables[number]
        cost, memory = nodes[number].copy(), table.memory_bytes.copy()
        for _ in asked:
            seconds, copies = next(priced)
            cost += seconds.ravel()
            memory += copies.ravel()
        found[key] = _Line(table, now, cost, memory)
    return [found[key] for key in keys]


def _letters(table: GroupTable, number: int, op: Op) -> list[str]:
    """The topology letter of each composite signature, for operator `number` of the group."""
    letters = []
    for composite in table.composites:
        signature = composite.signatures[number]
        ins = tuple(NdSbp((p,)) for p in signature.ins)
        outs = tuple(NdSbp((p,)) for p in signature.outs)
        letters.append(topology_letters(op, ins, outs)[0])
    return letters
