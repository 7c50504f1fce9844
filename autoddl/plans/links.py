"""What travels between the parts of a pipeline: tensors, their gradients, those of tied parameters.

Between two stages a tensor is resharded (`plans.reshard`); between two parts of one stage, which
an interleaved pipeline has, it is redistributed as within a plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..cluster.spec import Cluster
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedOp
from ..plans.stage_figures import stage_figures
from ..sbp.collectives import Step
from ..sbp.layout import TensorSpec
from ..sbp.redistribute import cheapest_path
from .reshard.plan import ReshardPlan, plan_reshard
from .reshard.unit_tasks import End
from .stage import StagePlan

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Link:
    """`tensor` travels from part `source` to part `target`; its gradient, if any, back."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class StageLinks:
    """Of the parts `stages` of `graph` (of one micro-batch), part v on stage v mod `num_stages`."""

    graph: Graph
    cluster: Cluster
    stages: tuple[StagePlan, ...]
    num_stages: int

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """By source part, then in graph order, then by target."""
        return tuple(
            Link(op.attrs["tensor"], source, target)
            for source, stage in enumerate(self.stages)
            for op in stage.graph.ops
            if op.kind == "stage_output"
            for target in range(source + 1, len(self.stages))
            if self._end(target, "stage_input", op.attrs["tensor"])
        )

    def _end(self, stage: int, kind: str, tensor: str) -> Op | None:
        return self._ends.get((stage, kind, tensor))

    @cached_property
    def _ends(self) -> dict[tuple[int, str, str], Op]:
        return {
            (n, op.kind, op.attrs["tensor"]): op
            for n, stage in enumerate(self.stages)
            for op in stage.graph.ops
            if op.kind in ("stage_input", "stage_output")
        }

    @cached_property
    def reshards(self) -> Mapping[Link, tuple[ReshardPlan, ReshardPlan | None]]:
        """How each link's tensor travels between two stages, and its gradient back."""
        return {
            link: self.reshard(link, self.graph.tensors[link.tensor].spec)
            for link in self.links
            if not self.is_local(link)
        }

    def reshard(self, link: Link, spec: TensorSpec) -> tuple[ReshardPlan, ReshardPlan | None]:
        """As `reshards`, of a tensor `spec` (another batch, say)."""
        source, target = self.stages[link.source].place, self.stages[link.target].place
        out, into = self.ends(link)
        forward = self._planned(spec, End(source, out.ins[0]), End(target, into.outs[0]))
        back, wanted = into.grad_outs[0], out.grad_ins[0]
        backward = None
        if back is not None and wanted is not None:
            backward = self._planned(spec, End(target, back), End(source, wanted))
        return forward, backward

    def _planned(self, spec: TensorSpec, source: End, target: End) -> ReshardPlan:
        """Between stages that lie to each other as two others do, like there."""
        first, ends = source.place.first_node, (source, target)
        places = [(e.place.first_node - first, e.place.first_gpu, e.place.shape) for e in ends]
        kinds = tuple(self.cluster.group_of(end.place.first_node) for end in ends)
        key = spec, source.nd, target.nd, kinds, *places
        if key not in self._known:
            cluster = self.cluster.between(end.place for end in ends)
            self._known[key] = plan_reshard(spec, source, target, cluster)
        known = self._known[key]
        hosts = first - known.source.place.first_node
        return known.moved(hosts) if hosts else known

    @cached_property
    def _known(self) -> dict[Hashable, ReshardPlan]:
        return {}

    def ends(self, link: Link) -> tuple[PlannedOp, PlannedOp]:
        """The placements of its `end_ops`."""
        given, taken = self.end_ops(link)
        return self.stages[link.source].ops[given.name], self.stages[link.target].ops[taken.name]

    def end_ops(self, link: Link) -> tuple[Op, Op]:
        """What gives the link's tensor in its source's graph, and takes it in its target's."""
        given = self._end(link.source, "stage_output", link.tensor)
        taken = self._end(link.target, "stage_input", link.tensor)
        assert given is not None and taken is not None
        return given, taken

    def is_local(self, link: Link) -> bool:
        return link.source % self.num_stages == link.target % self.num_stages

    @cached_property
    def local_paths(self) -> Mapping[Link, tuple[Steps, Steps | None]]:
        """The steps of each link between two parts of one stage, and its gradient's back."""
        found: dict[Link, tuple[Steps, Steps | None]] = {}
        for link in filter(self.is_local, self.links):
            spec = self.graph.tensors[link.tensor].spec
            out, into = self.ends(link)
            mesh = self.stages[link.source].place.mesh
            comm = stage_figures(self.stages[link.source]).model.comm
            paths = mesh, comm.price, comm.collectives
            forward = cheapest_path(spec, out.ins[0], into.outs[0], *paths)
            back, wanted = into.grad_outs[0], out.grad_ins[0]
            backward = None
            if back is not None and wanted is not None:
                backward = cheapest_path(spec, back, wanted, *paths)
            found[link] = forward, backward
        return found

    @cached_property
    def shared_params(self) -> dict[str, tuple[int, ...]]:
        """Tied parameter (its tensor) -> the parts that hold it and add up its gradients."""
        found: dict[str, list[int]] = {}
        for n, stage in enumerate(self.stages):
            for op in stage.graph.params:
                found.setdefault(op.outputs[0], []).append(n)
        return {name: tuple(stages) for name, stages in found.items() if len(stages) > 1}

    @cached_property
    def exchange_s(self) -> list[float]:
        """Seconds that each part spends on the gradients of shared parameters."""
        seconds = [0.0] * len(self.stages)
        for name, stages in self.shared_params.items():
            cluster = self.cluster.between(self.stages[n].place for n in stages)
            link = cluster.inter if cluster.nodes > 1 else cluster.intra
            n_bytes = self.graph.tensors[name].spec.bytes
            for n in stages:
                width = max(self.stages[n].place.nodes, 1)
                seconds[n] += 2 * link.transfer_seconds(n_bytes / width)
        return seconds
