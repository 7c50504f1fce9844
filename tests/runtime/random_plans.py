"""Plans that no planner made: random signatures for every operator, cheapest paths between."""

import math
import random
from collections.abc import Callable, Sequence

from autoddl.cluster.spec import Cluster
from autoddl.cost.sharded_storage import Storage, split_storage
from autoddl.graph.graph import Graph, Op
from autoddl.graph.placed import PlannedEdge, PlannedOp
from autoddl.plans import Plan, SearchRecord, StagePlan
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.layout import is_even
from autoddl.sbp.mesh import Mesh, SubMesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.redistribute import PathTable
from autoddl.sbp.signature import Signature, signatures_of

LAPTOP = "laptop"


def cluster_of(nodes: int, gpus: int) -> Cluster:
    """A cluster of that shape; what its machines can do does not matter here."""
    return Cluster.load(LAPTOP).with_shape(nodes=nodes, gpus_per_node=gpus)


def fitting(graph: Graph, op: Op, chosen: Sequence[Signature], mesh: Mesh) -> bool:
    """True if the splits of one signature per axis divide the operator's tensors."""
    spec = graph.spec(op)
    for side, tensors in (("ins", spec.inputs), ("outs", spec.outputs)):
        for index, tensor in enumerate(tensors):
            if not is_even(tensor.shape, present(chosen, side, index), mesh):
                return False
    for signature in set(chosen):
        axes = [a for a, s in enumerate(chosen) if s == signature]
        if signature.limit and signature.limit % math.prod(mesh.units[a] for a in axes):
            return False
    return True


def column(chosen: Sequence[Signature], side: str, index: int) -> NdSbp | None:
    labels = [getattr(s, side)[index] for s in chosen]
    return None if None in labels else NdSbp(tuple(labels))


def present(chosen: Sequence[Signature], side: str, index: int) -> NdSbp:
    """The column of an input or an output, which always has a placement."""
    found = column(chosen, side, index)
    assert found is not None
    return found


def draw(
    graph: Graph, op: Op, mesh: Mesh, rng: random.Random, favour_splits: bool = True
) -> Sequence[Signature]:
    """One signature per axis, at random among those that divide the operator's tensors."""
    choices = signatures_of(graph.spec(op))
    splits = [s for s in choices if s.divides_work] or choices
    for attempt in range(60):
        pool = splits if favour_splits and attempt < 30 else choices
        chosen = [rng.choice(pool) for _ in range(mesh.num_axes)]
        if fitting(graph, op, chosen, mesh):
            return chosen
    return [choices[-1]] * mesh.num_axes


def random_plan(
    graph: Graph,
    cluster: Cluster,
    seed: int,
    *,
    micro_batches: int = 1,
    fixed: Callable[[Op], Sequence[Signature] | None] = lambda op: None,
    favour_splits: bool = True,
) -> Plan:
    """A plan for `graph` (as traced) with random signatures; `fixed` gives those that are not."""
    rng = random.Random(seed)
    if micro_batches > 1:
        graph = graph.with_batch(graph.batch // micro_batches)
    graph = graph.with_forks()
    mesh = cluster.mesh
    ops = {}
    for op in graph.ops:
        chosen = fixed(op)
        if chosen is None:
            chosen = draw(graph, op, mesh, rng, favour_splits)
        ops[op.name] = planned_op(graph, op, chosen)
    return with_paths(graph, cluster, ops, micro_batches, seed)


def planned_op(graph: Graph, op: Op, chosen: Sequence[Signature]) -> PlannedOp:
    return PlannedOp(
        tuple(present(chosen, "ins", i) for i in range(len(op.inputs))),
        tuple(present(chosen, "outs", i) for i in range(len(op.outputs))),
        tuple(
            column(chosen, "grad_outs", i) if tensor in graph.needs_grad else None
            for i, tensor in enumerate(op.outputs)
        ),
        tuple(
            column(chosen, "grad_ins", i) if (op.name, i) in graph.gives_grad else None
            for i in range(len(op.inputs))
        ),
        tuple(a for a, s in enumerate(chosen) if s.inner is not None),
    )


def with_paths(
    graph: Graph, cluster: Cluster, ops: dict[str, PlannedOp], micro_batches: int, seed: int
) -> Plan:
    """The plan with the cheapest steps between the operators, all bytes priced alike."""
    paths = PathTable(cluster.mesh, lambda kind, axes: (1.0, 1.0))
    edges = {}
    for op in graph.ops:
        for index, name in enumerate(op.inputs):
            producer = graph.producers[name]
            out = producer.outputs.index(name)
            spec = graph.tensors[name].spec
            given, taken = ops[producer.name], ops[op.name]
            forward = paths.path(spec, given.outs[out], taken.ins[index])
            source, target = taken.grad_ins[index], given.grad_outs[out]
            backward = () if source is None or target is None else paths.path(spec, source, target)
            edges[op.name, index] = PlannedEdge(op.name, index, forward, backward)
    stage = StagePlan(
        graph=graph,
        cluster=cluster,
        micro_batches=micro_batches,
        seed=seed,
        optimizer="sgd",
        comm_rule="plain",
        memory_limit_bytes=cluster.device.memory_bytes,
        ops=ops,
        edges=edges,
        layers=(),
        search=SearchRecord("random", 0),
        shares=cluster.shares,
        place=SubMesh(0, cluster.nodes, 0, cluster.gpus_per_node),
    )
    plan = Plan.on_one_mesh(stage)
    plan.verify()
    return plan


def with_zero(plan: Plan, kind: str) -> Plan:
    """The plan with its parameters stored by a stage, or (`mixed`) each in another way.

    ValueError if a parameter is not placed as its reader needs it.
    """
    every = tuple(range(plan.stage.mesh.num_axes))
    axes = [every, every[-1:], every[:1]]
    storage = {}
    for number, op in enumerate(plan.graph.params):
        mixed = Storage(1 + number // 2 % 3, axes[number % 3])
        storage[op.outputs[0]] = mixed if kind == "mixed" else Storage(int(kind), every)
    ops, edges = split_storage(
        plan.graph,
        stage_figures(plan.stage).model.comm,
        storage,
        plan.stage.ops,
        plan.stage.edges,
    )
    plan = plan.changed(ops=ops, edges=edges, buckets=(), waits=())  # its gradients are others now
    plan.verify()
    return plan
