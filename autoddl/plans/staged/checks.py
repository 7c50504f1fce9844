"""Whether a plan with stages is whole and consistent, and for a given model and cluster."""

from __future__ import annotations

from ...cluster.spec import Cluster
from ...graph.batch_norm import batch_norm_of, with_batch_norm
from ...graph.graph import Graph
from ...graph.precision import in_precision
from .figures import StagedFigures


def check_model(plan: StagedFigures, graph: Graph) -> None:
    """ValueError unless `plan` is for `graph`, a freshly traced model."""
    try:
        ours = in_precision(with_batch_norm(graph, batch_norm_of(plan.cut.graph)), plan.precision)
        ours = ours.with_batch(plan.cut.graph.batch) if graph.batch else ours
        same = ours.fingerprint == plan.cut.graph.fingerprint
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"the plan is for another model than the one given: it was made for "
            f"{plan.cut.graph.name!r} with {len(plan.cut.graph.ops)} operators, the given "
            f"model has {len(graph.ops)}; sizes or attributes may differ too. Plan this model "
            "anew"
        )


def check_cluster(plan: StagedFigures, cluster: Cluster) -> None:
    """ValueError unless `plan` is for a cluster of the same shape."""
    mine = (plan.cluster.nodes, plan.cluster.gpus_per_node)
    given = (cluster.nodes, cluster.gpus_per_node)
    if mine != given:
        raise ValueError(
            f"the plan is for {mine[0]} x {mine[1]} devices, the cluster has "
            f"{given[0]} x {given[1]}; plan for this cluster"
        )


def verify(plan: StagedFigures) -> None:
    """ValueError unless the stages are the model's layers, in order, on all devices."""
    bounds = [(s.first, s.last) for s in plan.stages]
    expected = [0, *(last for _, last in bounds)]
    if [first for first, _ in bounds] != expected[:-1] or expected[-1] != len(plan.cut.layers):
        raise ValueError(
            f"the stages {bounds} are not the {len(plan.cut.layers)} layers in order; "
            "plan the model again"
        )
    if plan.chunks < 1 or len(plan.stages) % plan.chunks:
        raise ValueError(
            f"{len(plan.stages)} parts are not {plan.chunks} on each stage; plan the model again"
        )
    first = plan.stages[: plan.num_stages]
    devices = sorted(d for s in first for d in s.place.devices)
    if any(s.place != first[v % len(first)].place for v, s in enumerate(plan.stages)):
        raise ValueError("the parts of a stage lie on different devices; plan the model again")
    cluster = plan.cluster
    if devices != [(n, g) for n in range(cluster.nodes) for g in range(cluster.gpus_per_node)]:
        raise ValueError(
            f"the stages do not lie on every device of {cluster} once; plan the model again"
        )
    for number, stage in enumerate(plan.stages):
        graph = plan.cut.stage(stage.first, stage.last).with_forks()
        if graph.fingerprint != stage.plan.graph.fingerprint:
            raise ValueError(
                f"the plan of stage {number} is not for its layers; plan the model again"
            )
