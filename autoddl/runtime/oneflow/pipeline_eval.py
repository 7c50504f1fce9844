"""Evaluation in pipeline stages: micro-batches go through the parts one by one, forward only.

All ranks follow one order, micro-batch by micro-batch and part by part; before its pass, a part
receives what earlier ones send it. Only what the model's results depend on is run and sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import oneflow as flow

from ...cluster.submesh import Device
from ...graph.graph import Graph
from ...plans.links import Link
from ...plans.staged import StagedPlan
from ...sbp.layout import TensorSpec
from .eval_batch import Sized, check_divides, micro_batches_in
from .executor import Values, sent_key
from .feed import Feed
from .groups import Groups
from .kernels.registry import OpaqueFn, RunState
from .part import Part
from .program import compile_program, needed_ops
from .redistribute import LocalFn, prepare
from .routes import to_broadcast
from .stage_executor import StageExecutor
from .transfers import CommThread, Resharding
from .world import broadcast


@dataclass(frozen=True)
class _Run:
    """What this rank needs for batches of one size."""

    graphs: tuple[Graph, ...]  # of every part
    feeds: Mapping[int, Feed]
    executors: Mapping[int, StageExecutor]
    reshards: Mapping[Link, Resharding]
    locals: Mapping[Link, LocalFn]
    micro_batches: int


class PipelineEvaluator:
    """Evaluates with the parameters of `parts`, this rank's; `ranks` are those of every part."""

    def __init__(
        self,
        plan: StagedPlan,
        parts: Mapping[int, Part],
        ranks: Sequence[Sequence[int]],
        groups: Groups,
        run_state: RunState,
        opaque: Mapping[str, OpaqueFn],
        device: Device,
        thread: CommThread,
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._ranks = ranks
        self._groups = groups
        self._run_state = run_state
        self._opaque = opaque
        self._device = device
        self._thread = thread
        self._links, self._wanted = _needed(plan)
        self._runs: dict[int, _Run] = {}

    def prepared(self, rows: int, inputs: Sequence[flow.Tensor]) -> Callable[[], list[flow.Tensor]]:
        """A call that all ranks make together, and gives the model's results, whole.

        Raises ValueError if the inputs or their size do not fit.
        """
        if rows not in self._runs:
            self._runs[rows] = self._make(rows)
        run = self._runs[rows]
        fed = {v: feed.take(inputs) for v, feed in run.feeds.items()}
        return lambda: self._evaluate(run, fed)

    def _make(self, rows: int) -> _Run:
        stages = self._plan.stages
        graphs = tuple(stage.plan.graph for stage in stages)
        parts = micro_batches_in(self._plan.cut.graph, rows)
        if parts is None:
            check_divides(
                [
                    Sized(s.plan.graph, s.plan.ops, s.place.mesh, wanted)
                    for s, wanted in zip(stages, self._wanted, strict=True)
                ],
                rows,
            )
            graphs, parts = tuple(graph.with_batch(rows) for graph in graphs), 1
        feeds, executors = {}, {}
        for v, part in self._parts.items():
            graph, ops, wanted = graphs[v], part.plan.ops, self._wanted[v]
            feeds[v] = Feed(graph, ops, parts, self._groups, needed_ops(graph, wanted))
            program = compile_program(
                graph, ops, part.plan.edges, self._groups, self._run_state, self._opaque, wanted
            )
            executors[v] = StageExecutor(program, part.state, self._run_state, self._groups)
        reshards, local = {}, {}
        for link in self._links:
            if not {link.source, link.target} & self._parts.keys():
                continue
            spec = graphs[link.source].tensors[link.tensor].spec
            paths = self._plan.travel.local_paths.get(link)
            if paths is None:
                plan, _ = self._plan.travel.reshard(link, spec)
                reshards[link] = Resharding(
                    plan, self._device, self._plan.cluster.gpus_per_node,
                    self._groups.device, self._thread,
                )  # fmt: skip
            else:
                out, _ = self._plan.travel.ends(link)
                local[link] = prepare(paths[0], spec.shape, out.ins[0], self._groups)
        return _Run(graphs, feeds, executors, reshards, local, parts)

    def _evaluate(self, run: _Run, fed: Mapping[int, list[Values]]) -> list[flow.Tensor]:
        chunks = [
            self._one(run, {v: x[m] for v, x in fed.items()}) for m in range(run.micro_batches)
        ]
        dims = [t.batch_dims for t in map(self._plan.cut.graph.tensors.get, self._names) if t]
        return [
            chunk[0] if len(chunk) == 1 else flow.cat(list(chunk), dim=dims[i][0])
            for i, chunk in enumerate(zip(*chunks, strict=True))
        ]

    @property
    def _names(self) -> tuple[str, ...]:
        return self._plan.cut.graph.outputs

    def _one(self, run: _Run, inputs: dict[int, Values]) -> list[flow.Tensor]:
        """One micro-batch through all parts."""
        sent: dict[int, Values] = {}
        found: dict[str, flow.Tensor] = {}
        for v in range(len(run.graphs)):
            for link in self._links:
                if link.target == v:
                    self._pass_on(run, link, sent, inputs)
            if v in self._parts:
                names = [n for n in self._names if n in run.graphs[v].outputs]
                sent[v], values = run.executors[v].evaluate_part(inputs[v], names)
                found.update(zip(names, values, strict=True))
        return [self._share(run, name, found.get(name)) for name in self._names]

    def _pass_on(
        self, run: _Run, link: Link, sent: Mapping[int, Values], inputs: Mapping[int, Values]
    ) -> None:
        key = sent_key(link.tensor)
        if link in run.locals:
            inputs[link.target][link.tensor] = run.locals[link](sent[link.source][key])
        elif link.source in self._parts:
            run.reshards[link].send(sent[link.source][key])
        elif link.target in self._parts:
            inputs[link.target][link.tensor] = run.reshards[link].receive()

    def _share(self, run: _Run, name: str, part: flow.Tensor | None) -> flow.Tensor:
        """A result, whole, on every rank: from the part that has computed it."""
        v = next(v for v, graph in enumerate(run.graphs) if name in graph.outputs)
        spec: TensorSpec = run.graphs[v].tensors[name].spec
        if part is None:
            whole = flow.zeros(
                spec.shape or (1,), dtype=getattr(flow, spec.dtype), device=self._groups.device
            )
        else:
            op = run.graphs[v].producers[name]
            nd = self._plan.stages[v].plan.ops[op.name].outs[op.outputs.index(name)]
            whole = prepare(to_broadcast(nd), spec.shape, nd, self._groups)(part)
        flat = whole.reshape(-1).contiguous().clone()
        return broadcast(flat, self._ranks[v][0]).reshape(spec.shape)


def _needed(plan: StagedPlan) -> tuple[list[Link], list[frozenset[str]]]:
    """The links that the model's results depend on; of every part its results and sending ends."""
    wanted: list[set[str]] = [set(stage.plan.graph.outputs) for stage in plan.stages]
    links: list[Link] = []
    for v in reversed(range(len(plan.stages))):
        names = needed_ops(plan.stages[v].plan.graph, frozenset(wanted[v]))
        for link in plan.travel.links:
            out, into = plan.travel.ends(link)
            if link.target == v and into.name in names:
                links.append(link)
                wanted[link.source].add(out.name)
    order = {link: n for n, link in enumerate(plan.travel.links)}
    return sorted(links, key=lambda x: order[x]), [frozenset(names) for names in wanted]
