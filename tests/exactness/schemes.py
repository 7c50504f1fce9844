"""The plans of the exactness matrix, by the names of the schemes that force them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph, Op
from autoddl.graph.regions import repeated_blocks
from autoddl.planner import baselines
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.planner.tables.group_table import WHOLE_SPACE, Space
from autoddl.plans import Plan
from autoddl.plans.schedule.buckets import best_buckets
from autoddl.plans.schedule.duplex import TurnsMaker, best_turns
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.signature import Signature, is_matmul, signatures_of
from tests.runtime.random_plans import random_plan, with_zero

BASELINES = ("ZeRO", "Megatron", "Megatron+ZeRO", "SUMMA")
HINTS = {  # of a GPT on 2x2
    "blocks.0.attention": "replicate()",
    "blocks.*.mlp": "split(4)",
    "blocks.1.attention": ("split(2)", "replicate(2)"),
    "embedding.weight": "(B, S0)",
    "logits": "(S0, S2)",
}
ZERO = ("zero", "zero-again")  # the state is saved and loaded on the way


def space(scheme: str, graph: Graph, mesh: Mesh) -> Space:
    """The restriction that forces `scheme`: data_parallel or letters such as B-S1, else none."""
    if scheme in ("searched", "random", "hinted"):
        return WHOLE_SPACE
    if scheme in ("data_parallel", *ZERO):
        return baselines.data_parallel(graph)
    if scheme == "mostly_data":  # where something sorts all tokens, too
        return replace(baselines.data_parallel(graph), strict=False)
    return baselines.forced(graph, mesh, scheme.split("-"))


def in_turns(plan: Plan) -> Plan:
    maker = stage_figures(plan.stage).maker
    turns = best_turns(maker)
    assert len(turns) > 2, "the two never change"
    buckets = best_buckets(TurnsMaker.of(maker, turns))
    return plan.changed(turns=turns, in_flight=2, buckets=buckets)


def of_products(roles: str, graph: Graph, cluster: Cluster) -> Plan:
    """Each mesh axis splits every product's rows (m), columns (n) or terms of sums (k).

    A sum whose terms are split is Partial. The other operators are drawn.
    """
    if len(roles) != cluster.mesh.num_axes or set(roles) - set("mnk"):
        raise ValueError(f"no role of m, n and k for each mesh axis: {roles!r}")

    def fixed(op: Op) -> Sequence[Signature] | None:
        if not is_matmul(op.kind):
            return None
        found: dict[str, Signature] = {}
        for one in signatures_of(graph.spec(op)):
            (y,) = one.outs
            whole = any(x.is_partial or x.is_broadcast for x in one.ins)
            if y.is_partial and not whole:
                found["k"] = one
            elif y.is_split and not any(x.is_partial for x in one.ins):
                rank = len(graph.tensors[op.outputs[0]].spec.shape)
                found.setdefault("n" if y.dim == rank - 1 else "m", one)
        return [found[role] for role in roles]

    return random_plan(graph, cluster, 0, fixed=fixed)


def plan_of(
    scheme: str,
    graph: Graph,
    cluster: Cluster,
    optimizer: str,
    parts: int,
    hints: Mapping[str, Any] = HINTS,
) -> Plan:
    """The plan of a scheme: `random:N` is drawn with seed N, ZeRO and SUMMA are the planner's.

    `stages:N` is a pipeline with twice the micro-batches; `zero:N` is data parallel with parameters
    stored by ZeRO's stage N, `zero:mixed` each by another; `zero-again:N` is the same with the
    repeated blocks run again. `turns:SCHEME` has two micro-batches in flight, and buckets of
    gradients, too. `hinted` obeys `hints`. `products:ROLES` is
    `of_products`.
    """
    kind, _, seed = scheme.partition(":")
    if kind == "products":
        return of_products(seed, graph, cluster)
    forced = seed if kind == "turns" else kind
    if kind in BASELINES:
        options = PlanOptions(optimizer=optimizer, micro_batches=parts, memory_limit_bytes=1e12)
        found = baseline_plans(graph, cluster, options)[kind][1]
        assert found is not None, scheme
        return found
    options = PlanOptions(
        seed=int(seed or 0) if kind == "random" else 0,
        optimizer=optimizer,
        micro_batches=parts if kind != "stages" else 2 * parts,
        stages=int(seed) if kind == "stages" else 1,
        memory_limit_bytes=1e12,
        search="random" if kind == "random" else "auto",
        restarts=1 if kind == "random" else 32,
        baselines=False,
        hints=hints if kind == "hinted" else (),
        overlap=kind in ("searched", "hinted"),  # as users have it; the others are drawn or forced
    )
    allowed = None if kind == "stages" else space(forced, graph, cluster.mesh)
    found = find_plan(graph, cluster, options, space=allowed)
    if kind == "turns":
        found = in_turns(found)
    if kind in ZERO:
        found = with_zero(found, seed)
    if kind == "zero-again":
        found = found.changed(recomputed=repeated_blocks(found.graph))
    return found
