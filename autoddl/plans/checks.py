"""Whether a plan is whole and consistent, and whether it is for a given model and cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from ..cluster.spec import Cluster
from ..cost.exchange import check_buckets
from ..graph.batch_norm import batch_norm_of, with_batch_norm
from ..graph.cut import CutGraph
from ..graph.demands import Demands, find_demands, host_with_share, stage_starts
from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.hints import HintAt
from ..graph.placed import PlannedEdge, PlannedOp
from ..graph.precision import in_precision
from ..graph.regions import Blocks
from ..sbp.collectives import Step, is_legal
from ..sbp.layout import Shape, is_even
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from ..sbp.signature import Signature, partial_gradient
from .schedule.orders import check_turns
from .stage import StagePlan

NOT_RECOMPUTED = (*SOURCE_KINDS, "stage_input", "stage_output", "loss")


def check_model(planned: Graph, precision: str, graph: Graph) -> None:
    """ValueError unless `planned` is `graph`, a freshly traced model, in `precision`."""
    graph = replace(graph, hints=(), framework=planned.framework)  # another's may be trained by it
    try:
        ours = in_precision(with_batch_norm(graph, batch_norm_of(planned)), precision)
        ours = ours.with_batch(planned.batch) if graph.batch else ours
        same = ours.with_forks().fingerprint == planned.with_forks().fingerprint
    except ValueError:
        same = False
    if not same:
        theirs = {op.name for op in graph.with_forks().ops}
        mine = {op.name for op in planned.with_forks().ops}
        differing = sorted(theirs ^ mine)[:3]
        hint = f" (first differences: {', '.join(differing)})" if differing else ""
        raise ValueError(
            f"the plan is for another model than the one given: it was made for "
            f"{planned.name!r} with {len(mine)} operators, the given model has "
            f"{len(theirs)}{hint}; the sizes or attributes may differ too. Plan this model anew"
        )


def check_shape(planned: Cluster, cluster: Cluster) -> None:
    """ValueError unless `cluster` has the shape of the one that was planned for.

    And the same kinds of hosts in the same order, if both have several.
    """
    mine = (planned.nodes, planned.gpus_per_node)
    given = (cluster.nodes, cluster.gpus_per_node)
    if mine != given:
        raise ValueError(
            f"the plan is for {mine[0]} x {mine[1]} devices, the cluster has "
            f"{given[0]} x {given[1]}; plan for this cluster, or give the cluster as "
            f"cluster.with_shape(nodes={mine[0]}, gpus_per_node={mine[1]})"
        )
    ours, theirs = (
        ", ".join(f"{group.nodes} x {group.name}" for group in where.groups)
        for where in (planned, cluster)
    )
    if ours and theirs and ours != theirs:
        raise ValueError(
            f"the plan is for hosts in the order {ours}, the cluster has {theirs}; give the hosts "
            "their ranks in the plan's order, or plan for this cluster"
        )


def verify_layers(cut: CutGraph, stages: Sequence[StagePlan]) -> None:
    """ValueError unless the stages are the model's layers in order."""
    bounds = [(s.first, s.last) for s in stages]
    expected = [0, *(last for _, last in bounds)]
    if [first for first, _ in bounds] != expected[:-1] or expected[-1] != len(cut.layers):
        raise ValueError(f"the stages {bounds} are not the {len(cut.layers)} layers in order")


def verify_places(cluster: Cluster, parts: Sequence[StagePlan], chunks: int) -> None:
    """ValueError unless the parts, `chunks` on each stage, lie on all devices."""
    if chunks < 1 or len(parts) % chunks:
        raise ValueError(f"{len(parts)} parts are not {chunks} on each stage")
    first = parts[: len(parts) // chunks]
    devices = sorted(d for s in first for d in s.place.devices)
    if any(s.place != first[v % len(first)].place for v, s in enumerate(parts)):
        raise ValueError("the parts of a stage lie on different devices")
    if devices != [(n, g) for n in range(cluster.nodes) for g in range(cluster.gpus_per_node)]:
        raise ValueError(f"the stages do not lie on every device of {cluster} once")


def verify_in_flight(held: Sequence[int], parts: Sequence[StagePlan]) -> None:
    """ValueError unless each part has as many micro-batches in flight as its schedule."""
    said = tuple(part.in_flight for part in parts)
    if said != tuple(held):
        raise ValueError(
            f"the plan says that {said} micro-batches are in flight, its schedule has {held}"
        )


def verify_stage(stage: StagePlan) -> None:
    """ValueError unless it places its operators as their rules allow, and all paths lead there.

    And unless what is recomputed are blocks of its operators, and each gradient that travels is in
    one bucket, if there are any, and its turns lead through all of a step.
    """
    _verify_blocks(stage.graph, stage.recomputed)
    known: dict[Hashable, str] = {}
    for op in stage.graph.ops:
        placed = stage.ops[op.name]
        grads = _with_gradient(stage.graph, op)
        key = stage.graph.alike[op.name], grads, placed
        if key not in known:
            known[key] = _unlike_its_rule(stage, op, placed, grads)
        if known[key]:
            raise ValueError(f"the plan places {op.name} ({op.kind}) wrongly: {known[key]}")
    _verify_names(stage)
    _verify_edges(stage)
    check_buckets(stage.graph, stage.exchanges, stage.buckets, stage.waits)
    if stage.turns and any(stage.waits):
        raise ValueError("the plan's buckets cannot wait where its micro-batches take turns")
    if stage.turns and stage.graph.is_stage:
        raise ValueError("the plan has turns in a stage of a pipeline, where its schedule has them")
    operators = sum(op.kind not in SOURCE_KINDS for op in stage.graph.ops)
    check_turns(stage.turns, operators, stage.micro_batches)


def _verify_edges(stage: StagePlan) -> None:
    """ValueError unless the steps of each edge lead from its producer to its reader, and back."""
    known: set[Hashable] = set()
    for op in stage.graph.ops:
        for index, name in enumerate(op.inputs):
            producer = stage.graph.producers[name]
            out = producer.outputs.index(name)
            edge = stage.edges.get((op.name, index), PlannedEdge(op.name, index))
            where, shape = f"input {index} of {op.name}", stage.graph.tensors[name].spec.shape
            given, taken = stage.ops[producer.name], stage.ops[op.name]
            ways = [(given.outs[out], edge.forward, taken.ins[index], where)]
            source, target = taken.grad_ins[index], given.grad_outs[out]
            if name in stage.graph.needs_grad and source is not None and target is not None:
                ways.append((source, edge.backward, target, f"gradient of {where}"))
            for way in ways:
                key = shape, *way[:3]
                if key not in known:
                    _verify_path(shape, stage.mesh, *way)
                    known.add(key)


def broken(
    graph: Graph, mesh: Mesh, ops: Mapping[str, PlannedOp], demands: Demands
) -> tuple[HintAt, str] | None:
    """A hint that the placements do not obey and the first operator where; None if they obey all.

    graph: of the model or a stage; demands: of operators that may be in other stages
    """
    for op in graph.ops:
        for demand in demands.get(op.name, ()):
            placed = ops[op.name]
            devices = demand.devices(mesh)
            found = demand.counted(graph, op, placed.ins, placed.outs, mesh)
            if found is None or (devices is not None and found != devices):
                return demand.at, op.name
    return None


def verify_hints(cut: CutGraph, stages: Sequence[StagePlan], hints: Sequence[HintAt]) -> None:
    """ValueError unless the stages of a model obey all hints."""
    if not hints:
        return
    demands, starts = find_demands(cut.graph, hints), stage_starts(cut.graph, hints)
    for stage in stages[1:]:
        first = cut.layers[stage.first][0]
        if starts is not None and first not in starts:
            raise ValueError(f"the plan has a stage that begins at {first!r}, against its hints")
    of_hosts = [at for at in hints if at.host is not None]
    at = of_hosts[0] if of_hosts and len(stages) > 1 else host_with_share(hints, stages[0].mesh)
    if at is not None:
        raise ValueError(f"the plan does not obey the hint {at}: the host has a share")
    for stage in stages:
        what = broken(stage.graph, stage.mesh, stage.ops, demands)
        if what:
            raise ValueError(f"the plan does not obey the hint {what[0]} at {what[1]!r}")


def _verify_names(stage: StagePlan) -> None:
    """ValueError on placements and steps of what is no operator, or no input, of the stage."""
    ops = {op.name: op for op in stage.graph.ops}
    unknown = [name for name in stage.ops if name not in ops]
    if unknown:
        raise ValueError(f"the plan places {unknown[0]!r}, which is no operator of its stage")
    shown = [name for layer in stage.layers for name in layer.ops]
    unknown = [name for name in shown if name not in ops]
    if unknown or len(set(shown)) < len(shown):
        what = f"{unknown[0]!r}, which its stage lacks" if unknown else "an operator twice"
        raise ValueError(f"the plan's layers have {what}")
    for (name, index), edge in stage.edges.items():
        if name not in ops or index >= len(ops[name].inputs):
            raise ValueError(f"the plan has steps to input {index} of {name!r}: there is none")
        producer = stage.graph.producers[ops[name].inputs[index]]
        if edge.zero_stage > (3 if producer.kind == "param" else 0):
            raise ValueError(
                f"the plan stores input {index} of {name!r} split as in ZeRO "
                f"{edge.zero_stage}: 1 to 3 are known, for parameters"
            )
        if edge.backward and stage.ops[name].grad_ins[index] is None:
            raise ValueError(f"the plan sends a gradient from input {index} of {name!r}: none is")


def _with_gradient(graph: Graph, op: Op) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Of its outputs and its inputs, which have a gradient."""
    return (
        tuple(tensor in graph.needs_grad for tensor in op.outputs),
        tuple((op.name, index) in graph.gives_grad for index in range(len(op.inputs))),
    )


def _unlike_its_rule(
    stage: StagePlan, op: Op, placed: PlannedOp, grads: tuple[tuple[bool, ...], tuple[bool, ...]]
) -> str:
    """What no signature of the operator allows of its placements; "" if there is nothing.

    grads: which of its outputs and inputs have a gradient
    """
    sides: tuple[tuple[NdSbp | None, ...], ...] = (
        placed.ins,
        placed.outs,
        placed.grad_outs,
        placed.grad_ins,
    )
    numbers = len(op.inputs), len(op.outputs), len(op.outputs), len(op.inputs)
    if tuple(map(len, sides)) != numbers:
        return f"it has {numbers[0]} inputs and {numbers[1]} outputs"
    if tuple(tuple(nd is not None for nd in side) for side in sides[2:]) != grads:
        return "its gradients are not those that flow from the loss to the parameters"
    axes = stage.mesh.num_axes
    wrong = next((nd for side in sides for nd in side if nd and len(nd) != axes), None)
    if wrong is not None:
        return f"{wrong} is not for {axes} axes"
    signatures = stage.graph.signatures(op)
    # what a source gives to nobody cannot leave it Partial: a parameter's gradient is summed
    leaving = map(partial_gradient, signatures) if op.inputs else ()
    allowed = (*signatures, *filter(None, leaving))
    carried: dict[Signature, int] = {}
    for axis, units in enumerate(stage.mesh.units):
        said = Signature(
            tuple(nd[axis] for nd in placed.ins),
            tuple(nd[axis] for nd in placed.outs),
            tuple(nd[axis] if nd is not None else None for nd in placed.grad_outs),
            tuple(nd[axis] if nd is not None else None for nd in placed.grad_ins),
        )
        found = next((s for s in allowed if _agree(said, s)), None)
        if found is None or (found.inner is not None) != (axis in placed.inner_axes):
            return f"on axis {axis} it has no signature {said}"
        carried[found] = carried.get(found, 1) * units
    for signature, parts in carried.items():
        if signature.limit is not None and signature.limit % parts:
            return f"{signature} in {parts} parts: they do not divide {signature.limit}"
    spec = stage.graph.spec(op)
    tensors = (*spec.inputs, *spec.outputs)
    for tensor, nd in zip(tensors, (*placed.ins, *placed.outs), strict=True):
        if not is_even(tensor.shape, nd, stage.mesh):
            return f"{nd} does not divide {tensor} evenly on {stage.mesh}"
    return ""


def _agree(said: Signature, signature: Signature) -> bool:
    """Whether they place all alike that has a placement in the first."""
    sides = ("ins", "outs", "grad_outs", "grad_ins")
    return all(
        place is None or place == other
        for side in sides
        for place, other in zip(getattr(said, side), getattr(signature, side), strict=True)
    )


def _verify_blocks(graph: Graph, recomputed: Blocks) -> None:
    kinds = {op.name: op.kind for op in graph.ops}
    seen: set[str] = set()
    for name in (name for block in recomputed for name in block):
        if kinds.get(name, "param") in NOT_RECOMPUTED:
            raise ValueError(f"the plan recomputes {name!r}, which is no operator of its graph")
        if name in seen:
            raise ValueError(f"the plan recomputes {name!r} in two blocks")
        seen.add(name)


def _verify_path(
    shape: Shape, mesh: Mesh, source: NdSbp, steps: tuple[Step, ...], target: NdSbp, where: str
) -> None:
    nd = source
    for step in steps:
        if not is_legal(step, nd):
            raise ValueError(
                f"the plan is inconsistent at {where}: {step} is no step from {nd}, on the way "
                f"from {source} to {target}"
            )
        nd = step.apply(nd)
        if not is_even(shape, nd, mesh):
            raise ValueError(
                f"the plan is inconsistent at {where}: {step} leads to {nd}, which does not divide "
                f"{shape} evenly on {mesh}"
            )
    if nd != target:
        raise ValueError(
            f"the plan is inconsistent at {where}: its steps lead from {source} to {nd}, "
            f"not to {target}"
        )
