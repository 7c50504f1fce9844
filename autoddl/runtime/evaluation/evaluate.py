"""Evaluation: batches of any size go through the parts of a model one by one, forward only.

All ranks follow one order, micro-batch by micro-batch and part by part; before its pass, a part
receives what earlier ones send it. Only what the model's results depend on is run and sent. A batch
of another size than in training runs in parts like the micro-batches, or else all at once; where
the plan's splits do not divide it and its rows stay apart, it is filled up and its results are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...graph.graph import Graph
from ...graph.placed import PlannedOp
from ...graph.rows import rows_apart
from ...plans import Plan, StagePlan
from ...plans.figures import Link, figures
from ...sbp.layout import TensorSpec, is_even
from ...sbp.mesh import Device, Mesh
from ...sbp.placement import NdSbp
from ..backend import Tensor
from ..comm.redistribute import LocalFn, prepare, to_broadcast
from ..comm.transfers import Resharding
from ..counting import Counting
from ..execution.executor import Executor, Values, sent_key
from ..execution.program import needed_ops
from ..feed import Feed
from ..part import Job, Part
from .mode import in_mode

Fed = Mapping[int, Sequence[Values]]  # of each of this rank's parts, of each micro-batch
LARGEST_BATCH_HINT = 4096  # rows: an error looks no further for sizes that would do


@dataclass(frozen=True)
class Sized:
    """A planned graph; `wanted`: tensors (or operators) that an evaluation needs of it."""

    graph: Graph
    ops: Mapping[str, PlannedOp]
    mesh: Mesh
    wanted: frozenset[str]

    def splits_divide(self, batch: int) -> bool:
        """True if every planned split is even at this size."""
        try:
            graph = self.graph.with_batch(batch)
        except ValueError:
            return False
        needed = needed_ops(graph, self.wanted)
        for op in graph.ops:
            if op.name in needed:
                planned, spec = self.ops[op.name], graph.spec(op)
                pairs = zip(
                    (*spec.inputs, *spec.outputs), (*planned.ins, *planned.outs), strict=True
                )
                if not all(is_even(t.shape, nd, self.mesh) for t, nd in pairs):
                    return False
        return True


def micro_batches_in(graph: Graph, batch: int, results: Sequence[str]) -> int | None:
    """How many parts of the graph's own size the batch is, if `results` can be put together."""
    if graph.batch in (0, batch):
        return 1
    if batch % graph.batch == 0 and rows_apart(graph).issuperset(results):
        return batch // graph.batch
    return None


def check_divides(plans: Sequence[Sized], batch: int) -> None:
    """ValueError, which says what would fit, if a planned split does not divide the batch."""
    if all(plan.splits_divide(batch) for plan in plans):
        return
    fitting = (
        n for n in range(1, LARGEST_BATCH_HINT) if all(plan.splits_divide(n) for plan in plans)
    )
    step = next(fitting, None)
    hint = f"; give a multiple of {step} rows" if step else ""
    raise ValueError(f"the plan's splits do not divide a batch of {batch} rows{hint}")


@dataclass(frozen=True)
class Run:
    """What this rank needs for batches of one size.

    graphs:   of every part
    counting: how the micro-batches add up; None if there is but one, or nothing to add up
    """

    graphs: tuple[Graph, ...]
    feeds: Mapping[int, Feed]
    executors: Mapping[int, Executor]
    reshards: Mapping[Link, Resharding]
    locals: Mapping[Link, LocalFn]
    micro_batches: int
    counting: Counting | None


class Evaluator:
    """Evaluates with the parameters of `parts`, this rank's, which is `device` of the cluster.

    sums: tensors that are wanted beside the model's results, and add up over micro-batches; a batch
          of any size is filled up with padding then, if the model allows it. None without
    """

    def __init__(
        self, job: Job, parts: Mapping[int, Part], device: Device, sums: Sequence[str] | None = None
    ) -> None:
        self.names = (*job.results, *(sums or ()))
        self._adds_up = sums is not None
        self._job = job
        self._plan = job.plan
        self._stages = [in_mode(stage, training=False) for stage in job.plan.stages]
        self._groups = job.groups
        self._parts = parts
        self._device = device
        self._links, self._wanted = _needed(job.plan, self._stages, self.names)
        self._runs: dict[int, Run] = {}
        self._sizes: dict[int, int] = {}

    def prepared(self, rows: int, inputs: Sequence[Tensor | None]) -> Callable[[], list[Tensor]]:
        """A call that all ranks make together, and gives the model's results, whole.

        Raises ValueError if the inputs or their size do not fit.
        """
        if rows not in self._sizes:
            self._sizes[rows] = self._size(rows)
        size = self._sizes[rows]
        run, fed = self.fed(size, inputs if size == rows else self._filled(inputs, rows, size))
        return lambda: self._evaluate(run, fed, rows, size)

    def _size(self, rows: int) -> int:
        """As how many rows so many are evaluated."""
        whole = self._job.evaluated
        if not whole.batch or rows % whole.batch == 0 or self._splits_divide(rows):
            return rows
        is_apart = rows_apart(whole).issuperset(self.names)
        return -(-rows // whole.batch) * whole.batch if is_apart else rows

    def _splits_divide(self, rows: int) -> bool:
        return all(plan.splits_divide(rows) for plan in self._sized())

    def _sized(self) -> list[Sized]:
        pairs = zip(self._stages, self._wanted, strict=True)
        return [Sized(s.graph, s.ops, s.mesh, wanted) for s, wanted in pairs]

    def _filled(
        self, inputs: Sequence[Tensor | None], rows: int, size: int
    ) -> Sequence[Tensor | None]:
        """The inputs with more rows, which are the first ones again."""
        found, graph, backend = list(inputs), self._job.evaluated, self._groups.backend
        for op in (op for op in graph.ops if op.kind == "input"):
            dims, index = graph.tensors[op.outputs[0]].batch_dims, op.attrs["index"]
            x = found[index] if index < len(found) else None
            if x is not None and dims and x.ndim > dims[0]:
                count = x.shape[dims[0]] // rows * (size % rows)
                parts = [*[x] * (size // rows), backend.narrow(x, dims[0], 0, count)]
                found[index] = backend.cat(parts, dims[0])
        return found

    def fed(self, rows: int, inputs: Sequence[Tensor]) -> tuple[Run, Fed]:
        """What batches of so many rows need, and this rank's parts of the inputs of one."""
        if rows not in self._runs:
            self._runs[rows] = self._make(rows)
        run = self._runs[rows]
        short = rows if run.counting is not None else None
        return run, {
            v: feed.take(inputs, None if rows == feed.batch else short)
            for v, feed in run.feeds.items()
        }

    def _cut(self, rows: int) -> tuple[tuple[Graph, ...], int, Counting | None]:
        """The graphs of all parts, how often they run on so many rows, and how that adds up."""
        stages, whole = self._stages, self._job.evaluated
        graphs = tuple(stage.graph for stage in stages)
        if self._adds_up and whole.batch:
            parts = -(-rows // whole.batch)
            counting = Counting.of(whole, parts, evaluates=True, stages=graphs)
            if counting.padding is not None:
                return graphs, parts, counting
        parts = 1 if whole.batch in (0, rows) else None
        if not self._adds_up:
            parts = micro_batches_in(whole, rows, self.names)
        if parts is not None:
            return graphs, parts, None
        check_divides(self._sized(), rows)
        return tuple(graph.with_batch(rows) for graph in graphs), 1, None

    def _make(self, rows: int) -> Run:
        predicted = figures(self._plan)
        graphs, parts, counting = self._cut(rows)
        feeds, executors = {}, {}
        for v, part in self._parts.items():
            graph, stage, wanted = graphs[v], self._stages[v], self._wanted[v]
            feeds[v] = Feed(graph, stage.ops, parts, self._groups, needed_ops(graph, wanted))
            executors[v] = self._job.executor(graph, stage, part.state, wanted, counting)
        reshards, local = {}, {}
        for link in self._links:
            if not {link.source, link.target} & self._parts.keys():
                continue
            spec = graphs[link.source].tensors[link.tensor].spec
            paths = predicted.travel.local_paths.get(link)
            if paths is None:
                plan, _ = predicted.travel.reshard(link, spec)
                gpus = self._plan.cluster.gpus_per_node
                reshards[link] = Resharding(
                    plan, self._device, gpus, self._groups.backend, beside=self._job.beside
                )
            else:
                out, _ = predicted.travel.ends(link)
                local[link] = prepare(paths[0], spec.shape, out.ins[0], self._groups)
        return Run(graphs, feeds, executors, reshards, local, parts, counting)

    def _evaluate(self, run: Run, fed: Fed, rows: int, size: int) -> list[Tensor]:
        """The results for so many rows, of `size`."""
        chunks = [
            [self.share(run, name, found.get(name)) for name in self.names]
            for found in self.passes(run, fed)
        ]
        dims = [t.batch_dims for t in map(self._plan.graph.tensors.get, self.names) if t]
        backend = self._groups.backend
        found = [
            chunk[0] if len(chunk) == 1 else backend.cat(chunk, dims[i][0])
            for i, chunk in enumerate(zip(*chunks, strict=True))
        ]
        if rows == size:
            return found
        pairs = [(x, own[0]) for x, own in zip(found, dims, strict=True)]
        cut = (backend.narrow(x, d, 0, x.shape[d] // size * rows) for x, d in pairs)
        return [backend.contiguous(x) for x in cut]

    def passes(self, run: Run, fed: Fed) -> Iterator[Values]:
        """This rank's parts of the results of each micro-batch, as they are placed."""
        if run.counting is not None:
            for v, executor in run.executors.items():
                executor.add_up(fed[v])
        for m in range(run.micro_batches):
            yield self._one(run, {v: x[m] for v, x in fed.items()}, m)

    def _one(self, run: Run, inputs: dict[int, Values], number: int) -> Values:
        """One micro-batch through all parts."""
        sent: dict[int, Values] = {}
        found: dict[str, Tensor] = {}
        for v in range(len(run.graphs)):
            for link in self._links:
                if link.target == v:
                    self._pass_on(run, link, sent, inputs)
            if v in self._parts:
                names = [n for n in self.names if self.maker(n) == v]
                sent[v], values = run.executors[v].evaluate(inputs[v], names, number)
                found.update(zip(names, values, strict=True))
        return found

    def maker(self, name: str) -> int:
        """The part that gives a result."""
        return _maker(self._plan, name)

    def _pass_on(
        self, run: Run, link: Link, sent: Mapping[int, Values], inputs: Mapping[int, Values]
    ) -> None:
        key = sent_key(link.tensor)
        if link in run.locals:
            inputs[link.target][link.tensor] = run.locals[link](sent[link.source][key])
        elif link.source in self._parts:
            run.reshards[link].send(sent[link.source][key])
        elif link.target in self._parts:
            inputs[link.target][link.tensor] = run.reshards[link].receive()

    def share(self, run: Run, name: str, part: Tensor | None) -> Tensor:
        """A result, whole, on every rank: from the part that has computed it."""
        v = self.maker(name)
        spec: TensorSpec = run.graphs[v].tensors[name].spec
        backend = self._groups.backend
        if part is None:
            whole = backend.zeros(spec.shape, spec.dtype)
        else:
            nd = self.placed(name)
            whole = prepare(to_broadcast(nd), spec.shape, nd, self._groups)(part)
        if self._plan.num_stages == 1:
            return whole
        return backend.broadcast(whole, self._job.ranks[v][0])

    def placed(self, name: str) -> NdSbp:
        """Where the part that gives a result has it."""
        stage = self._plan.stages[self.maker(name)]
        op = stage.graph.producers[name]
        return stage.ops[op.name].outs[op.outputs.index(name)]


def _maker(plan: Plan, name: str) -> int:
    """The part of a plan that gives a result: the one that lists it, or that computes it."""
    graphs = [stage.graph for stage in plan.stages]
    listed = [v for v, graph in enumerate(graphs) if name in graph.outputs]
    return (listed or [v for v, graph in enumerate(graphs) if name in graph.producers])[0]


def _needed(
    plan: Plan, stages: Sequence[StagePlan], names: Sequence[str]
) -> tuple[list[Link], list[frozenset[str]]]:
    """The links that the model's results depend on; of every part its results and sending ends.

    stages: as they run in evaluation
    """
    predicted = figures(plan)
    wanted: list[set[str]] = [set() for _ in plan.stages]
    for name in names:
        wanted[_maker(plan, name)].add(name)
    links: list[Link] = []
    for v in reversed(range(len(plan.stages))):
        needed = needed_ops(stages[v].graph, frozenset(wanted[v]))
        for link in predicted.travel.links:
            out, into = predicted.travel.end_ops(link)
            if link.target == v and into.name in needed:
                links.append(link)
                wanted[link.source].add(out.name)
    order = {link: n for n, link in enumerate(predicted.travel.links)}
    return sorted(links, key=lambda x: order[x]), [frozenset(names) for names in wanted]
