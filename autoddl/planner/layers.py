"""Layers of a plan: each heavy operator with the light ones around it, and its topology.

The topology is the paper's (section 4.2): of a product Y = X W, S0 is the extent that splits X's
rows, B the extent over which X is replicated and W's columns are split, S1 the extent that splits
the summed dim; each as (nodes, GPUs). R, printed only if present, is the extent that repeats the
whole computation. `topology` reads them off the heavy operator's placements.

`next_best` says what each layer would lose by its next best topology. Only the layer's own strategy
is exchanged, everything else stays as it is: the cheapest strategy of another topology that still
fits the memory is what the plan shows beside the layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph, Op
from ..graph.placed import PlannedOp
from ..plans.stage import BATCH, COPIES, SUMMANDS, PlannedLayer, Split
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp, Placement
from ..search.problem import Choice, Table
from .tables.groups import Grouping, rule_of
from .tables.storage_table import GroupTable
from .tables.tables import Tables

Alternative = tuple[str, Split, float]  # a topology, its split, seconds that it adds


def topology_letters(op: Op, ins: tuple[NdSbp, ...], outs: tuple[NdSbp, ...]) -> tuple[str, ...]:
    """For each mesh axis what it does to a heavy operator: S0, B, S1 or R (module docstring)."""
    # An embedding's rows are its indices, input 1; of every other heavy operator input 0.
    rows = ins[1 if op.kind == "gather" and len(ins) > 1 else 0]
    out = outs[0] if outs else rows
    letters = []
    for given, made in zip(rows, out, strict=True):
        if made.is_partial and not given.is_partial:
            letters.append("S1")
        elif given.is_split:
            letters.append("S0")
        else:
            letters.append("B" if made.is_split else "R")
    return tuple(letters)


def batch_dims_of(graph: Graph, op: Op) -> tuple[int, ...]:
    """The dims of an operator's first output that grow with the batch."""
    return graph.tensors[op.outputs[0]].batch_dims if op.outputs else ()


def loop_of(graph: Graph, op: Op, ins: Sequence[Placement], outs: Sequence[Placement]) -> str:
    """The loop of an operator that a mesh axis with these placements divides, in a word."""
    made, rule = outs[0] if outs else None, rule_of(op)
    names, summed = rule.loops(graph.spec(op)) if rule.loops else ((), "in")
    if made is not None and made.is_split:
        if made.dim in batch_dims_of(graph, op):
            return BATCH
        return names[made.dim] if made.dim < len(names) else f"dim{made.dim}"
    if any(place.is_split for place in ins):
        return summed
    if any(place.is_partial for place in (*ins, *outs)):
        return SUMMANDS
    return COPIES


def topology(letters: tuple[str, ...], mesh: Mesh) -> str:
    """The letters of all mesh axes as the paper writes them: `(S0:(4,1), B:(8,1), S1:(2,1))`."""
    parts = []
    for letter in ("S0", "B", "S1", "R"):
        axes = [a for a, at in enumerate(letters) if at == letter]
        if axes or letter != "R":
            nodes, gpus = mesh.topology(axes)
            parts.append(f"{letter}:({nodes},{gpus})")
    return f"({', '.join(parts)})"


def heavy_groups(tables: Tables) -> list[tuple[int, Op]]:
    """Every group that has a heavy operator, with the last one in it, in graph order."""
    grouping = tables.grouping
    last: dict[int, int | None] = {}  # of each kind of groups its last heavy operator
    found = []
    for number, (group, kind) in enumerate(zip(grouping.groups, grouping.kinds, strict=True)):
        if kind not in last:
            heavy = [n for n, op in enumerate(group.ops) if rule_of(op).heavy]
            last[kind] = heavy[-1] if heavy else None
        at = last[kind]
        if at is not None:
            found.append((number, group.ops[at]))
    return found


def assign_layers(graph: Graph, grouping: Grouping, heavy: list[tuple[int, Op]]) -> list[list[str]]:
    """The operators of each heavy group's layer, in graph order.

    A group with a heavy operator is in that layer; any other group joins the layer before it in
    graph order (the first layer takes what stands before it), a source the layer of its first
    reader.
    """
    if not heavy:
        return [[op.name for op in graph.ops]]
    layer_of_group: dict[int, int] = {}
    number_of = {group: n for n, (group, _) in enumerate(heavy)}
    current = 0
    for group in range(len(grouping.groups)):
        current = number_of.get(group, current)
        layer_of_group[group] = current
    layers: list[list[str]] = [[] for _ in heavy]
    layer_of_op: dict[str, int] = {}
    for op in reversed(graph.ops):
        if op.name in grouping.owner:
            layer_of_op[op.name] = layer_of_group[grouping.owner[op.name]]
        else:
            uses = [user for out in op.outputs for user, _ in graph.consumers[out]]
            layer_of_op[op.name] = layer_of_op[uses[0].name] if uses else 0
    for op in graph.ops:
        layers[layer_of_op[op.name]].append(op.name)
    return layers


def describe_layers(
    tables: Tables, ops: dict[str, PlannedOp], alternatives: Mapping[int, Alternative]
) -> tuple[PlannedLayer, ...]:
    """The plan's layers in graph order, as reports show them.

    alternatives: heavy group -> the next best topology, see `next_best`
    """
    graph, mesh = tables.grouping.graph, tables.model.cluster.mesh
    heavy = heavy_groups(tables)
    members = assign_layers(graph, tables.grouping, heavy)
    if not heavy:
        members_of = tuple(members[0])
        shape = topology((), mesh)
        return (PlannedLayer(graph.name, "light", Split(), shape, "", ops=members_of),)
    layers = []
    known: dict[Hashable, tuple[Split, str, str]] = {}  # split, topology, signature of equal layers
    taken: dict[str, int] = {}
    for (group, op), names in zip(heavy, members, strict=True):
        planned = ops[op.name]
        name = op.module or op.name
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        key = graph.alike[op.name], planned.ins, planned.outs, batch_dims_of(graph, op)
        if key not in known:
            letters = topology_letters(op, planned.ins, planned.outs)
            axes = zip(zip(*planned.ins, strict=True), zip(*planned.outs, strict=True), strict=True)
            split = Split.of([loop_of(graph, op, *sides) for sides in axes], mesh)
            sides = (", ".join(map(str, side)) for side in (planned.ins, planned.outs))
            known[key] = split, topology(letters, mesh), " -> ".join(sides)
        alternative = alternatives.get(group, ("", Split(), 0.0))
        layers.append(PlannedLayer(name, op.kind, *known[key], *alternative, ops=tuple(names)))
    return tuple(layers)


@dataclass(frozen=True)
class _Line:
    """All strategies of a layer, each with the seconds and bytes of its group and its edges.

    now: the number of the strategy that the plan has
    """

    table: GroupTable
    now: int
    cost: Table
    memory: Table


def next_best(tables: Tables, choice: Choice, memory: float) -> dict[int, Alternative]:
    """For each heavy group the cheapest other topology that fits.

    The tables may have few of a group's strategies; others are not considered. A group without
    another topology that fits is not in the result.
    """
    heavy = heavy_groups(tables)
    kinds: dict[tuple[int, int], _Topologies] = {}
    known: dict[tuple[int, int], tuple[int, float] | None] = {}  # equal lines are compared once
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
            strategy, extra_s = best
            split = _split(tables, line.table, number, op, strategy)
            found[group] = kinds[key].name(strategy), split, extra_s
    return found


def _split(tables: Tables, table: GroupTable, number: int, op: Op, strategy: int) -> Split:
    """How a strategy divides the work of `op`, operator `number` of the group."""
    signatures = (table.composites[n].signatures[number] for n in table.assign[strategy])
    graph = tables.grouping.graph
    words = [loop_of(graph, op, signature.ins, signature.outs) for signature in signatures]
    return Split.of(words, tables.model.cluster.mesh)


def _best_other(
    line: _Line, topologies: _Topologies, fits: NDArray[np.bool_]
) -> tuple[int, float] | None:
    """The cheapest strategy of another topology among what fits, and the seconds that it adds."""
    other = topologies.of_strategy != topologies.of_strategy[line.now]
    candidates = np.where(fits & other, line.cost, np.inf)
    best = int(np.argmin(candidates))
    if not np.isfinite(candidates[best]):
        return None
    return best, float(candidates[best] - line.cost[line.now])


@dataclass(frozen=True)
class _Topologies:
    """The distinct topologies of a group's strategies, and the one that each strategy has."""

    names: list[str]
    of_strategy: NDArray[np.int64]

    def name(self, strategy: int) -> str:
        return self.names[self.of_strategy[strategy]]

    @staticmethod
    def of(table: GroupTable, number: int, op: Op, mesh: Mesh) -> _Topologies:
        """The topologies by the placements of `op`, operator `number` of the group."""
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
