"""A plan for a graph taken over for another one that differs from it in names alone."""

from __future__ import annotations

import dataclasses

from ..graph.graph import Graph, Op
from ..graph.placed import PlannedEdge, PlannedLayer, PlannedOp
from . import Plan

_NAMES = ("name", "tensor")  # attributes that hold a name


def renamed(plan: Plan, graph: Graph) -> Plan | None:
    """`plan` for `graph` (with forks), None unless its operators are the plan's under other names.

    Searching again would give the same plan: a search sees no names.
    """
    ops = _same_ops(plan.graph, graph)
    if ops is None:
        return None

    def op(planned: PlannedOp) -> PlannedOp:
        return dataclasses.replace(planned, name=ops[planned.name].name)

    def edge(planned: PlannedEdge) -> PlannedEdge:
        return dataclasses.replace(planned, op=ops[planned.op].name)

    places = {old.module or old.name: ops[old.name] for old in plan.graph.ops}

    def layer(planned: PlannedLayer) -> PlannedLayer:
        base, sharp, number = planned.name.partition("#")
        new = places.get(base)
        name = f"{new.module or new.name}{sharp}{number}" if new else planned.name
        return dataclasses.replace(
            planned, name=name, ops=tuple(ops[old].name for old in planned.ops)
        )

    return dataclasses.replace(
        plan,
        graph=graph,
        ops={ops[name].name: op(planned) for name, planned in plan.ops.items()},
        edges={(ops[n].name, i): edge(planned) for (n, i), planned in plan.edges.items()},
        layers=tuple(map(layer, plan.layers)),
        recomputed=tuple(tuple(ops[name].name for name in block) for block in plan.recomputed),
    )


def _same_ops(old: Graph, new: Graph) -> dict[str, Op] | None:
    """Old name -> the operator at the same place, if all are alike and wired alike."""
    if len(old.ops) != len(new.ops) or old.batch != new.batch:
        return None
    tensors: dict[str, str] = {}
    for a, b in zip(old.ops, new.ops, strict=True):
        attrs = [{k: v for k, v in op.attrs.items() if k not in _NAMES} for op in (a, b)]
        if (a.kind, attrs[0], len(a.outputs)) != (b.kind, attrs[1], len(b.outputs)):
            return None
        if [tensors[name] for name in a.inputs] != list(b.inputs) or a.kind == "opaque":
            return None
        tensors.update(zip(a.outputs, b.outputs, strict=True))
    sizes = all(
        dataclasses.replace(old.tensors[a], name=b) == new.tensors[b] for a, b in tensors.items()
    )
    ends = [tensors.get(n) for n in old.outputs] == list(new.outputs)
    if not sizes or not ends or tensors.get(old.loss, "") != new.loss:
        return None
    return {a.name: b for a, b in zip(old.ops, new.ops, strict=True)}
