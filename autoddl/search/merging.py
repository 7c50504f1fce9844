"""Two variables as one, whose strategies are some of their pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problem import Edge, Problem, Table

Numbers = NDArray[np.int64]
Pair = tuple[Numbers, Numbers]  # of each strategy that of the first variable and of the second


@dataclass(frozen=True)
class Merged:
    """problem: the smaller one.

    members:    of each of its variables, the one or two that it stands for
    strategies: of each of its node tables, for each member that one's table and strategies
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]
    strategies: tuple[tuple[tuple[int, Numbers], ...], ...]


# Of a variable: the pairs that it is in, and as which of the two; no pairs for one that stays.
_Side = tuple[int, int] | None


def merged(
    problem: Problem, chosen: Mapping[tuple[int, int], int], pairs: Mapping[int, Pair]
) -> Merged:
    """The problem with the variables of each of `chosen` as one, in the place of the first.

    chosen: (first, second) -> number of their `pairs`; no variable is in two of them
    Equal variables and equal edges share their tables, as before.
    """
    sides: dict[int, _Side] = {}
    second_of: dict[int, int] = {}
    for (first, second), number in chosen.items():
        sides[first], sides[second], second_of[first] = (number, 0), (number, 1), second
    gone = set(second_of.values())
    stays = [variable for variable in range(problem.num_variables) if variable not in gone]
    position = {variable: n for n, variable in enumerate(stays)}
    position |= {second: position[first] for first, second in second_of.items()}

    def rows(side: _Side, table: Any) -> Any:
        return table if side is None else table[pairs[side[0]][side[1]]]

    inside: dict[int, list[tuple[int, bool]]] = {position[first]: [] for first in second_of}
    edges: list[tuple[int, int, tuple[int, bool, _Side, _Side]]] = []
    for first, second, table in problem.edges:
        low, high = position[first], position[second]
        if low == high:
            inside[low].append((table, first in gone))
        else:
            key = table, low > high, sides.get(first), sides.get(second)
            edges.append((min(low, high), max(low, high), key))
    members = [(v, second_of[v]) if v in second_of else (v,) for v in stays]
    nodes = [
        (tuple((problem.nodes[v], sides.get(v)) for v in own), tuple(sorted(inside.get(n, ()))))
        for n, own in enumerate(members)
    ]
    node_of = {key: n for n, key in enumerate(dict.fromkeys(nodes))}
    edge_of = {key: n for n, key in enumerate(dict.fromkeys(key for *_, key in edges))}

    def of_nodes(node: Sequence[Table], edge: Sequence[Table]) -> tuple[Table, ...]:
        found = []
        for own, between in node_of:
            total = np.sum([rows(side, node[table]) for table, side in own], axis=0)
            for table, is_turned in between:
                _, side = own[0]
                assert side is not None, "only pairs have edges inside"
                left, right = pairs[side[0]]
                ends = (right, left) if is_turned else (left, right)
                total = total + edge[table][ends]
            found.append(total)
        return tuple(found)

    def of_edges(edge: Sequence[Table]) -> tuple[Table, ...]:
        found = []
        for table, is_turned, first, second in edge_of:
            one = rows(second, rows(first, edge[table]).T)
            found.append(np.ascontiguousarray(one if is_turned else one.T))
        return tuple(found)

    smaller = dataclasses.replace(
        problem,
        node_cost=of_nodes(problem.node_cost, problem.edge_cost),
        node_memory=of_nodes(problem.node_memory, problem.edge_memory),
        edge_cost=of_edges(problem.edge_cost),
        edge_memory=of_edges(problem.edge_memory),
        nodes=tuple(node_of[key] for key in nodes),
        edges=tuple(Edge(low, high, edge_of[key]) for low, high, key in edges),
        heavy=frozenset(),
    )
    strategies = [
        tuple((table, rows(side, np.arange(len(problem.node_cost[table])))) for table, side in own)
        for own, _ in node_of
    ]
    return Merged(smaller, tuple(members), tuple(strategies))
