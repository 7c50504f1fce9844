"""A plan as it runs in one mode: what only training or only evaluation needs is left out.

An operator `by_mode` is an identity of what it reads in the mode (`Graph.in_mode`). In evaluation
what neither its results nor its loss need is not in a program at all. In training, whose steps a
plan may count by operators (`turns`), what evaluation alone needs is there and does nothing, and
between stages it does not travel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...graph.batch_norm import is_training_norm
from ...graph.placed import PlannedEdge, PlannedOp
from ...plans import Plan, StagePlan
from ...plans.figures import Link, figures


def in_mode(stage: StagePlan, training: bool) -> StagePlan:
    """A stage with the placements of its graph in a mode."""
    graph = stage.graph.in_mode(training)
    if graph is stage.graph:
        return stage
    ops, edges = dict(stage.ops), dict(stage.edges)
    for op in stage.graph.ops:
        if op.kind == "by_mode":
            read = 0 if training else len(op.inputs) - 1
            ops[op.name] = _reading(ops[op.name], read)
            edges[op.name, 0] = edges.get((op.name, read), PlannedEdge(op.name, read))
    return replace(stage, graph=graph, ops=ops, edges=edges)


def _reading(planned: PlannedOp, read: int) -> PlannedOp:
    """The placements of an operator of whose inputs one alone is read."""
    return replace(planned, ins=(planned.ins[read],), grad_ins=(planned.grad_ins[read],))


def evaluated_links(plan: Plan) -> frozenset[Link]:
    """Those between the parts that nothing needs in training."""
    found: set[Link] = set()
    links, end_ops = figures(plan).travel.links, figures(plan).travel.end_ops
    if all(op.kind != "by_mode" for op in plan.graph.ops):
        return frozenset()
    for v, stage in reversed([*enumerate(plan.stages)]):
        alone = stage.graph.evaluated_alone(unsent(links, found))
        found.update(x for x in links if x.target == v and end_ops(x)[1].name in alone)
    return frozenset(found)


def unsent(links: Collection[Link], evaluated: Collection[Link]) -> frozenset[str]:
    """The tensors of which all links are among those that nothing needs in training."""
    sent = {link.tensor for link in links if link not in evaluated}
    return frozenset(link.tensor for link in links) - sent


def check_moved(plan: Plan, aside: Collection[Link]) -> None:
    """ValueError if in evaluation a part reads what another part moves in training.

    Such as the statistics of a BatchNorm, which the part would read as they were at the start.
    aside: `evaluated_links`
    """
    moved: dict[str, int] = {}
    read: list[tuple[str, int]] = []
    out = unsent(figures(plan).travel.links, aside)
    for v, stage in enumerate(plan.stages if len(plan.stages) > 1 else ()):
        alone = stage.graph.evaluated_alone(out)
        for op in stage.graph.ops:
            buffers = [n for n in op.inputs if stage.graph.producers[n].kind == "buffer"]
            if op.name in alone:
                read += [(name, v) for name in buffers]
            elif op.kind == "opaque" or is_training_norm(op):
                moved |= dict.fromkeys(buffers, v)
    for name, v in read:
        if moved.get(name, v) != v:
            raise ValueError(
                f"in evaluation, stage {v + 1} reads {name}, which in training stage "
                f"{moved[name] + 1} alone moves: plan the model on one mesh, or with both in one "
                "stage (the hint stage() says where a stage may begin)"
            )
