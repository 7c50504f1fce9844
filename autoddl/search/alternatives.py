"""For each layer of a solution: the next best topology with everything else as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Op
from ..sbp.placement import NdSbp
from .group_table import GroupTable
from .layers import heavy_groups, topology, topology_letters
from .problem import Choice, Problem, Table
from .tables import EdgePart, Others, Rows, Tables


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
        return _among_others(tables.problem, tables.others, choice, variables)
    return [
        _Line(
            tables.groups[tables.problem.nodes[variable]],
            int(choice[variable]),
            *tables.problem.line(choice, variable),
        )
        for variable in variables
    ]


@dataclass(frozen=True)
class _Asked:
    """What a line is of: a node table, the strategy chosen of it, and edges to what is chosen."""

    table: int
    now: int
    edges: tuple[tuple[int, bool, int], ...]  # edge table, is the first, the other's strategy


def _among_others(
    problem: Problem, others: Others, choice: Choice, variables: Sequence[int]
) -> list[_Line]:
    """Of the others and of what the tables have; equal layers with equal neighbours once."""
    heavy = sorted({problem.nodes[variable] for variable in variables})
    rows = [
        np.union1d(kept, more) if number in heavy else kept
        for number, (kept, more) in enumerate(zip(others.kept, others.rows, strict=True))
    ]
    wide = others.builder.among(rows, others.builder.prices)

    def at(variable: int) -> int:
        table = problem.nodes[variable]
        return int(np.searchsorted(rows[table], others.kept[table][choice[variable]]))

    asked = [
        _Asked(
            problem.nodes[variable],
            at(variable),
            tuple((edge, first, at(other)) for other, edge, first in problem.neighbours[variable]),
        )
        for variable in variables
    ]
    distinct = list(dict.fromkeys(asked))
    edges, nodes = wide.parts(
        [part for one in distinct for part in _parts(one, rows)],
        [(number, np.arange(len(rows[number]))) for number in heavy],
    )
    priced, node_s = iter(edges), dict(zip(heavy, nodes, strict=True))
    found = {}
    for one in distinct:
        table = wide.group_tables[one.table]
        cost, memory = node_s[one.table].copy(), table.memory_bytes.copy()
        for _ in one.edges:
            seconds, copies = next(priced)
            cost += seconds.ravel()
            memory += copies.ravel()
        found[one] = _Line(table, one.now, cost, memory)
    return [found[one] for one in asked]


def _parts(line: _Asked, rows: Sequence[Rows]) -> Iterator[EdgePart]:
    every = np.arange(len(rows[line.table]))
    for edge, is_first, other in line.edges:
        one = np.array([other])
        yield (edge, every, one) if is_first else (edge, one, every)


def _letters(table: GroupTable, number: int, op: Op) -> list[str]:
    """The topology letter of each composite signature, for operator `number` of the group."""
    letters = []
    for composite in table.composites:
        signature = composite.signatures[number]
        ins = tuple(NdSbp((p,)) for p in signature.ins)
        outs = tuple(NdSbp((p,)) for p in signature.outs)
        letters.append(topology_letters(op, ins, outs)[0])
    return letters
