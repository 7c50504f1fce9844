"""For each layer of a solution: the next best topology with everything else as it is."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Op
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from ..search.problem import Choice, Problem, Table
from .layers import heavy_groups, topology, topology_letters
from .tables.group_table import GroupTable
from .tables.tables import EdgePart, Others, Rows, Tables


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
    heavy = heavy_groups(tables)
    kinds: dict[tuple[int, int], _Topologies] = {}
    known: dict[tuple[int, int], tuple[str, float] | None] = {}  # equal lines are compared once
    found = {}
    numbers = [
        [other.name for other in tables.grouping.groups[group].ops].index(op.name)
        for group, op in heavy
    ]
    lines = _lines(tables, choice, heavy, numbers)
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
    """The cheapest other topology of the strategies that fit, and its seconds more."""
    other = topologies.of_strategy != topologies.of_strategy[line.now]
    candidates = np.where(fits & other, line.cost, np.inf)
    best = int(np.argmin(candidates))
    if not np.isfinite(candidates[best]):
        return None
    name = topologies.names[topologies.of_strategy[best]]
    return name, float(candidates[best] - line.cost[line.now])


@dataclass(frozen=True)
class _Topologies:
    """Of a group's strategies: the different ones by name, and which each strategy has."""

    names: list[str]
    of_strategy: NDArray[np.int64]

    @staticmethod
    def of(table: GroupTable, number: int, op: Op, mesh: Mesh) -> _Topologies:
        """Of operator `number` of the group, which is `op`."""
        letters = _letters(table, number, op)
        every = sorted(set(letters))
        codes = np.array([every.index(letter) for letter in letters], dtype=np.int8)
        rows, row_of = np.unique(codes[table.assign], axis=0, return_inverse=True)
        texts = [topology(tuple(every[code] for code in row), mesh) for row in rows.tolist()]
        names = list(dict.fromkeys(texts))
        name_of = np.array([names.index(text) for text in texts], dtype=np.int64)
        return _Topologies(names, name_of[row_of.ravel()])


def _lines(
    tables: Tables, choice: Choice, heavy: Sequence[tuple[int, Op]], numbers: Sequence[int]
) -> list[_Line]:
    """Equal layers with equal neighbours share one; numbers: of the operators in their groups."""
    problem, chosen = tables.problem, choice.tolist()
    variables = [tables.variables[group] for group, _ in heavy]
    first: dict[Hashable, int] = {}

    def alike(variable: int) -> int:
        around = [(edge, is_first, chosen[n]) for n, edge, is_first in problem.neighbours[variable]]
        key = problem.nodes[variable], chosen[variable], *around
        return first.setdefault(key, variable)

    which = [alike(variable) for variable in variables]
    distinct = list(first.values())
    if tables.others is not None:
        ops = {v: (n, op) for v, n, (_, op) in zip(variables, numbers, heavy, strict=True)}
        lines = _among_others(problem, tables.others, chosen, {v: ops[v] for v in distinct})
    else:
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


def _among_others(
    problem: Problem, others: Others, chosen: Sequence[int], ops: Mapping[int, tuple[int, Op]]
) -> list[_Line]:
    """Of the others and of what the tables have: what is chosen, and all of other topologies.

    ops: variable -> the operator that tells the topology, and its number in the group
    """
    heavy = {problem.nodes[variable] for variable in ops}
    rows = [
        np.union1d(kept, more) if number in heavy else kept
        for number, (kept, more) in enumerate(zip(others.kept, others.rows, strict=True))
    ]
    wide = others.builder.among(rows, others.builder.prices)

    def at(variable: int) -> int:
        table = problem.nodes[variable]
        return int(np.searchsorted(rows[table], others.kept[table][chosen[variable]]))

    def shown(variable: int) -> Rows:
        table = wide.group_tables[problem.nodes[variable]]
        of = _Topologies.of(table, *ops[variable], wide.model.cluster.mesh).of_strategy
        now = at(variable)
        return np.flatnonzero((of != of[now]) | (np.arange(len(of)) == now))

    def parts(variable: int) -> Iterator[EdgePart]:
        for other, edge, is_first in problem.neighbours[variable]:
            own, one = own_rows[variable], np.array([at(other)])
            yield (edge, own, one) if is_first else (edge, one, own)

    own_rows = {variable: shown(variable) for variable in ops}
    edges, nodes = wide.parts(
        [part for variable in ops for part in parts(variable)],
        [(problem.nodes[variable], own) for variable, own in own_rows.items()],
    )
    priced = iter(edges)
    found = []
    for (variable, own), node_s in zip(own_rows.items(), nodes, strict=True):
        table = wide.group_tables[problem.nodes[variable]].some(own)
        cost, memory = node_s.copy(), table.memory_bytes.copy()
        for _ in problem.neighbours[variable]:
            seconds, copies = next(priced)
            cost += seconds.ravel()
            memory += copies.ravel()
        found.append(_Line(table, int(np.searchsorted(own, at(variable))), cost, memory))
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
