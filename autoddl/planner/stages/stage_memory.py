"""The memory of a stage's search problem, with several micro-batches in flight.

    memory = parameters + h (what a micro-batch keeps) + (what a block that is run again holds)

for h forward passes held (`partition.in_flight`). Tables count h = 1; `with_in_flight`
adds the others: outputs that are kept, and copies of what is redistributed outside of such blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ...cost.memory import lasting_shares
from ...cost.operators import saved_bytes
from ...sbp.layout import TensorSpec, even_bytes_of
from ...sbp.placement import Placement
from ...search.problem import Problem, Table
from ..tables.group_table import GroupTable, stored_placement
from ..tables.groups import CompositeSignature, Group, rule_of
from ..tables.tables import Tables


def with_in_flight(tables: Tables, held: int) -> Problem:
    """The tables' problem with `held` forward passes in memory."""
    problem = tables.problem
    if held == 1:
        return problem
    group_of = dict(zip(tables.variables, tables.grouping.groups, strict=True))
    nodes, edges = list(problem.node_memory), list(problem.edge_memory)
    owners = {problem.nodes[variable]: group for variable, group in group_of.items()}
    for number, group in owners.items():
        nodes[number] = nodes[number] + (held - 1) * _kept(tables, group, tables.groups[number])
    for edge in {edge.table: edge for edge in problem.edges}.values():
        source, reader = group_of.get(edge.first), group_of.get(edge.second)
        if source is None or reader is None or source.head.kind == "param":
            continue
        if any(op.name not in tables.again.block_of for op in reader.ops):
            edges[edge.table] = held * edges[edge.table]
    return dataclasses.replace(problem, node_memory=tuple(nodes), edge_memory=tuple(edges))


def _kept(tables: Tables, group: Group, table: GroupTable) -> Table:
    """Per strategy, bytes of the group's outputs and of model inputs that a micro-batch keeps."""
    graph, mesh = tables.grouping.graph, tables.model.cluster.mesh
    kept = np.zeros(len(table.assign))

    def local_bytes(spec: TensorSpec, where: Callable[[CompositeSignature], Placement]) -> Table:
        return even_bytes_of(spec, table.codes(where), mesh)

    for number, op in enumerate(group.ops):
        if op.kind == "param":
            continue
        spec = graph.spec(op)
        outs = np.zeros(len(table.assign))
        for index, out in enumerate(spec.outputs):
            outs += local_bytes(out, lambda c, n=number, i=index: c.signatures[n].outs[i])
        has_grad = any(o in graph.needs_grad for o in op.outputs)
        if tables.again.leaves(op):
            kept += saved_bytes(spec, rule_of(op), outs, has_grad)
        if has_grad and op.name not in tables.again.block_of:
            of_input, of_output = lasting_shares(spec)
            if of_input:
                kept += of_input * local_bytes(
                    spec.inputs[0], lambda c, n=number: c.signatures[n].ins[0]
                )
            kept += of_output * outs
    for port in group.sources:
        if graph.producers[port.tensor].kind == "input":
            spec = graph.tensors[port.tensor].spec
            kept += local_bytes(
                spec, lambda c, p=port: stored_placement(c.signatures[p.op].ins[p.index])
            )
    return kept
