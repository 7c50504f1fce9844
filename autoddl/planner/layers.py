"""Layers of a plan: each heavy operator with the light ones around it, and its topology.

The topology is the paper's (section 4.2): of a product Y = X W, S0 is the extent that splits X's
rows, B the extent over which X is replicated and W's columns are split, S1 the extent that splits
the summed dim; each as (nodes, GPUs). R, printed only if present, is the extent that repeats the
whole computation. `topology` reads them off the heavy operator's placements.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..graph.graph import Graph, Op
from ..graph.placed import PlannedOp
from ..plans.records import PlannedLayer
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from .tables.groups import Grouping, rule_of
from .tables.tables import Tables


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
    tables: Tables, ops: dict[str, PlannedOp], alternatives: dict[int, tuple[str, float]]
) -> tuple[PlannedLayer, ...]:
    """The plan's layers in graph order, as reports show them.

    alternatives: heavy group -> (next best topology, extra seconds), see `alternatives.next_best`
    """
    graph, mesh = tables.grouping.graph, tables.model.cluster.mesh
    heavy = heavy_groups(tables)
    members = assign_layers(graph, tables.grouping, heavy)
    if not heavy:
        return (PlannedLayer(graph.name, "light", tuple(members[0]), topology((), mesh), ""),)
    layers = []
    known: dict[Hashable, tuple[str, str]] = {}  # topology and signature of equal layers
    taken: dict[str, int] = {}
    for (group, op), names in zip(heavy, members, strict=True):
        planned = ops[op.name]
        name = op.module or op.name
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        key = op.kind, planned.ins, planned.outs
        if key not in known:
            letters = topology_letters(op, planned.ins, planned.outs)
            sides = (", ".join(map(str, side)) for side in (planned.ins, planned.outs))
            known[key] = topology(letters, mesh), " -> ".join(sides)
        alternative = alternatives.get(group, ("", 0.0))
        layers.append(PlannedLayer(name, op.kind, tuple(names), *known[key], *alternative))
    return tuple(layers)
