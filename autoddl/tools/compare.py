"""Our plan beside the known schemes, all plans of one graph, priced by one model.

`compare` plans the graph and writes down every baseline that fits as a plan of its own, so that
each figure (seconds by cause and link, bytes, memory) is the account of a program that could run.
With pipeline stages our plan has as many as pay, and Megatron is tried in stages, too; the figures
of a pipeline are those of its slowest stage, its seconds those until all stages are done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ..cluster.spec import Cluster
from ..cost.account import Cost, Traffic
from ..cost.model import CostModel
from ..graph.batch_norm import with_batch_norm
from ..graph.graph import Graph
from ..planner.asked import cost_model
from ..planner.baselines import Chosen, chosen
from ..planner.baselines.megatron_stages import megatron_in_stages
from ..planner.options import DEFAULTS, PlanOptions
from ..planner.planner import find_plan
from ..planner.schemes import each_baseline
from ..plans import Plan
from ..plans.figures import figures
from ..plans.format import before, format_seconds
from ..plans.report.contents import unfit_text
from ..plans.stage import PlannedBaseline

OURS = "autoddl"
OWN_TOPOLOGY = "each layer its own"
MEGATRON_STAGES = "Megatron in stages"
_log = logging.getLogger(__name__)
RIVAL = "auto_parallel"  # nn.Graph's enable_auto_parallel


@dataclass(frozen=True)
class Scheme:
    """One plan of the comparison; of a scheme that cannot run, `why` not.

    least_bytes: that it needs of a device if that is too much; None if it is not known
    """

    name: str
    topology: str
    plan: Plan | None
    least_bytes: float | None = None
    why: str = ""

    @property
    def runs(self) -> bool:
        return self.plan is not None

    @property
    def seconds(self) -> float:
        """Of an iteration; inf if the scheme cannot run."""
        return float("inf") if self.plan is None else figures(self.plan).iteration_s

    @property
    def memory_bytes(self) -> float | None:
        """That it needs of a device, which the memory limit is held against."""
        return self.least_bytes if self.plan is None else max(figures(self.plan).needed_bytes)

    @property
    def cost(self) -> Cost:
        """Of a scheme that runs."""
        assert self.plan is not None, f"{self.name} cannot run"
        return figures(self.plan).cost

    @property
    def micro_batches(self) -> int:
        assert self.plan is not None, f"{self.name} cannot run"
        return self.plan.micro_batches

    @property
    def stages(self) -> int:
        return 1 if self.plan is None else self.plan.num_stages

    @property
    def bubble(self) -> float:
        """The share of a pipeline's time in which its stages wait."""
        return 0.0 if self.plan is None or self.stages == 1 else figures(self.plan).timeline.bubble


@dataclass(frozen=True)
class Comparison:
    """Our plan and the baselines of `graph` under `model`, ours first.

    is_whole: no scheme was left out, as after Ctrl-C
    """

    graph: Graph
    model: CostModel
    schemes: tuple[Scheme, ...]
    is_whole: bool = True

    @property
    def ours(self) -> Scheme:
        return self.schemes[0]

    @property
    def closest(self) -> Scheme | None:
        """The fastest of the others; None if none of them can run."""
        others = [scheme for scheme in self.schemes[1:] if scheme.runs]
        return min(others, key=lambda scheme: scheme.seconds, default=None)

    def reductions(self, other: Scheme) -> dict[str, float]:
        """By which shares our plan needs less than `other`: time, communication, NIC bytes."""
        mine, theirs = self.ours.cost, other.cost
        return {
            "iteration_s": _less(self.ours.seconds, other.seconds),
            "communication_s": _less(mine.communication_s, theirs.communication_s),
            "nic_bytes": _less(mine.nic_bytes.total, theirs.nic_bytes.total),
        }


def compare(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions = DEFAULTS,
    *,
    rival: Chosen | str | None = None,
    stages: bool = False,
) -> Comparison:
    """Our plan and every known scheme; the errors are those of `find_plan`.

    Ctrl-C ends it with the schemes that were priced until then, if our plan is among them.

    options: without stages; those of the search and of ZeRO are of our plan
    rival:   the placements that OneFlow's own planner chose (it knows float32), or why there are
             none
    stages:  our plan may have pipeline stages, and Megatron in stages is one scheme more

    ValueError for a rival beside another precision.
    """
    if rival is not None and options.precision != "float32":
        raise ValueError(
            f"OneFlow's own planner plans in float32, so it cannot be compared in "
            f"{options.precision}; leave one of the two out"
        )
    graph = with_batch_norm(graph, options.batch_norm)
    model = cost_model(graph, cluster, options)
    later = "Megatron in stages" if stages else "", "OneFlow's own planner" if rival else ""
    with before("the comparison", *later):
        plan = find_plan(graph, cluster, replace(options, stages="auto") if stages else options)
    ours, others = _ours(plan), list[Scheme]()
    is_whole = not plan.was_interrupted
    try:
        if is_whole:
            _log.info("ours takes %s; now the known schemes", format_seconds(ours.seconds))
            with before(*later):
                for found in each_baseline(graph, cluster, options):
                    others.append(_scheme(*found))
        if is_whole and stages:
            _log.info("ours takes %s; now Megatron in stages", format_seconds(ours.seconds))
            with before(*later[1:]):
                others.append(_megatron(graph, model, options))
        if is_whole and rival is not None:
            others.append(_rival(graph, cluster, rival, options))
    except KeyboardInterrupt:
        is_whole = False
    for other in others:
        if other.name == MEGATRON_STAGES and other.seconds < ours.seconds:
            ours = replace(other, name=OURS)
    return Comparison(graph, model, (ours, *others), is_whole)


def _ours(plan: Plan) -> Scheme:
    several = plan.num_stages > 1
    topology = f"{plan.num_stages} stages, {OWN_TOPOLOGY}" if several else OWN_TOPOLOGY
    return Scheme(OURS, topology, plan)


def _megatron(graph: Graph, model: CostModel, options: PlanOptions) -> Scheme:
    found = megatron_in_stages(graph, model, options.micro_batches, options.seed)
    if found is None:
        why = "its blocks divide over no number of stages, or nothing fits"
        return Scheme(MEGATRON_STAGES, "in stages", None, why=why)
    kinds = " | ".join(dict.fromkeys(found.topologies))
    topology = f"{found.plan.num_stages} stages of {kinds}"
    return Scheme(MEGATRON_STAGES, topology, found.plan)


def _rival(graph: Graph, cluster: Cluster, rival: Chosen | str, options: PlanOptions) -> Scheme:
    """OneFlow's choice with all that it leaves open at its best."""
    if isinstance(rival, str):
        return Scheme(RIVAL, "not known", None, why=rival)
    space, followed = chosen(graph, rival)
    topology = f"as it chose, in {sum(followed.values())} of {len(followed)} groups of operators"
    try:
        plan = find_plan(graph, cluster, replace(options, baselines=False), space=space)
    except ValueError as error:
        return Scheme(RIVAL, topology, None, why=str(error).split(":")[0])
    return Scheme(RIVAL, topology, plan)


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
