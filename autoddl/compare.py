"""Our plan beside the known schemes, all plans of one graph, priced by one model.

`compare` plans the graph and writes down every baseline that fits as a plan of its own, so that
each figure (seconds by cause and link, bytes, memory) is the account of a program that could run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .baselines import Chosen, chosen
from .cluster.spec import Cluster
from .cost.account import Traffic
from .cost.comm import CommRule
from .explain import unfit_text
from .graph import Graph
from .planned import PlannedBaseline
from .planner import baseline_plans, find_plan
from .plans import Plan

OURS = "autoddl"
RIVAL = "auto_parallel"  # nn.Graph's enable_auto_parallel


@dataclass(frozen=True)
class Scheme:
    """One plan of the comparison; `plan` is None if the scheme cannot run, `why` says why."""

    name: str
    topology: str
    plan: Plan | None
    memory_bytes: float | None = None
    why: str = ""

    @property
    def seconds(self) -> float:
        """Of an iteration; inf if the scheme cannot run."""
        return float("inf") if self.plan is None else self.plan.cost.iteration_s

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        told: dict[str, Any] = {
            "name": self.name,
            "topology": self.topology,
            "fits": plan is not None,
            "why_not": self.why,
            "memory_bytes": self.memory_bytes,
        }
        if plan is None:
            return told
        cost = plan.cost
        return told | {
            "memory_bytes": cost.memory_bytes,
            "micro_batches": plan.micro_batches,
            "iteration_s": cost.iteration_s,
            "compute_s": cost.compute_s,
            "communication_s": cost.communication_s,
            "communication_s_by_cause": causes(cost.inter_s, cost.intra_s),
            "communication_s_by_link": {
                "between nodes": cost.inter_s.total,
                "inside a node": cost.intra_s.total,
            },
            "nic_bytes": causes(cost.nic_bytes),
            "intra_bytes": causes(cost.intra_bytes),
        }


@dataclass(frozen=True)
class Comparison:
    """Our plan and the baselines, ours first."""

    schemes: tuple[Scheme, ...]

    @property
    def ours(self) -> Scheme:
        return self.schemes[0]

    @property
    def closest(self) -> Scheme | None:
        """The fastest of the others; None if none of them can run."""
        others = [scheme for scheme in self.schemes[1:] if scheme.plan is not None]
        return min(others, key=lambda scheme: scheme.seconds, default=None)

    def reductions(self, other: Scheme) -> dict[str, float]:
        """By which shares our plan needs less than `other`: time, communication, NIC bytes."""
        assert self.ours.plan is not None and other.plan is not None
        mine, theirs = self.ours.plan.cost, other.plan.cost
        return {
            "iteration_s": _less(mine.iteration_s, theirs.iteration_s),
            "communication_s": _less(mine.communication_s, theirs.communication_s),
            "nic_bytes": _less(mine.nic_bytes.total, theirs.nic_bytes.total),
        }

    def to_json(self) -> dict[str, Any]:
        plan, closest = self.ours.plan, self.closest
        assert plan is not None
        told: dict[str, Any] = {
            "model": plan.graph.name,
            "cluster": {
                "name": plan.cluster.name,
                "nodes": plan.cluster.nodes,
                "gpus_per_node": plan.cluster.gpus_per_node,
            },
            "batch": plan.batch,
            "optimizer": plan.optimizer,
            "memory_limit_bytes": plan.memory_limit_bytes,
            "schemes": [scheme.to_json() for scheme in self.schemes],
            "closest": None if closest is None else closest.name,
        }
        if closest is not None:
            told["less_than_closest"] = self.reductions(closest)
        return told


def compare(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    optimizer: str = "adam",
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    comm_rule: CommRule = "shared_nic",
    zero: bool = True,
    precision: str = "float32",
    rival: Chosen | str | None = None,
) -> Comparison:
    """Our plan and every known scheme; the options and errors are those of `find_plan`.

    zero:  False: our plan stores parameters whole, as AutoDDL's own space does
    rival: the placements that OneFlow's own planner chose, or why there are none; it knows float32

    ValueError for a rival beside another precision.
    """
    if rival is not None and precision != "float32":
        raise ValueError(
            f"OneFlow's own planner plans in float32, so it cannot be compared in {precision}; "
            "leave one of the two out"
        )
    options: Mapping[str, Any] = {
        "seed": seed,
        "optimizer": optimizer,
        "micro_batches": micro_batches,
        "memory_limit_bytes": memory_limit_bytes,
        "comm_rule": comm_rule,
        "precision": precision,
    }
    plan = find_plan(graph, cluster, **options, zero=zero)
    ours = Scheme(OURS, "a topology for each layer", plan, plan.cost.memory_bytes)
    others = (_scheme(*found) for found in baseline_plans(graph, cluster, **options).values())
    schemes = [ours, *others]
    if rival is not None:
        schemes.append(_rival(graph, cluster, rival, options))
    return Comparison(tuple(schemes))


def _rival(
    graph: Graph, cluster: Cluster, rival: Chosen | str, options: Mapping[str, Any]
) -> Scheme:
    """OneFlow's choice with all that it leaves open at its best."""
    if isinstance(rival, str):
        return Scheme(RIVAL, "not known", None, why=rival)
    space, followed = chosen(graph, rival)
    topology = f"as it chose, in {sum(followed.values())} of {len(followed)} groups of operators"
    try:
        plan = find_plan(graph, cluster, **options, space=space, baselines=False)
    except ValueError as error:
        return Scheme(RIVAL, topology, None, why=str(error).split(":")[0])
    return Scheme(RIVAL, topology, plan, plan.cost.memory_bytes)


def _scheme(record: PlannedBaseline, plan: Plan | None) -> Scheme:
    why = "" if record.fits else unfit_text(record)
    return Scheme(record.name, record.topology, plan, record.memory_bytes, why)


def causes(*traffic: Traffic) -> dict[str, float]:
    """The sums by cause."""
    return {
        "forward": sum(t.forward for t in traffic),
        "backward": sum(t.backward for t in traffic),
        "gradient_sync": sum(t.gradient_sync for t in traffic),
    }


def _less(mine: float, theirs: float) -> float:
    return 1 - mine / theirs if theirs else 0.0
