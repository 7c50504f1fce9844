"""One rank's part of a model: its program, its state, and its open micro-batches.

A model on one mesh is one part. In a pipeline each stage has a part, or several (chunks).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.graph import Graph, Op
from ..graph.rows import Rows
from ..plans import Plan, StagePlan
from ..plans.figures import Link, figures
from ..plans.stage_figures import stage_figures
from .backend import Backend, Tensor
from .comm.communicating import communicating_passes
from .comm.groups import Groups
from .comm.transfers import Resharding
from .counting import Counting
from .emulate.arrival import Arrival
from .emulate.emulate import Emulator
from .evaluation.mode import check_moved, evaluated_links, in_mode, unsent
from .execution.buckets import buckets_of, late_uses
from .execution.chains import in_chains
from .execution.executor import Executor, Values
from .execution.filled import skip_padding
from .execution.program import compile_program
from .execution.trial import check_kernels
from .feed import Feed
from .kernel import OpaqueFn, RunState
from .measure.profile import Recorder
from .state import ModelState
from .traced import Traced

_BLINK_S = 5e-4  # between two looks at whether an emulated transfer has arrived


@dataclass(frozen=True)
class Job:
    """What all of a rank's parts have in common.

    ranks:    the job's ranks of each part, in the order of its mesh
    stage:    this rank's
    groups:   of this rank's stage
    evaluated: the whole graph as it is evaluated, without a loss if there is none then
    results:  the tensors that the model gives in evaluation, in the order of its structure
    aside:    the links between parts that nothing needs in training
    counting: how the micro-batches of the whole model add up in training
    whole:    the user's own parameters and buffers, by name
    emulator: waits in the place of kernels; results then mean nothing
    beside:   transfers between stages run beside computation
    """

    plan: Plan
    ranks: Sequence[Sequence[int]]
    stage: int
    groups: Groups
    run_state: RunState
    opaque: Mapping[str, OpaqueFn]
    counting: Counting
    evaluated: Graph
    results: tuple[str, ...]
    aside: frozenset[Link]
    whole: Mapping[str, Tensor]
    emulator: Emulator | None = None
    beside: bool = False
    debug: bool = False

    @classmethod
    def of(
        cls,
        traced: Traced,
        plan: Plan,
        backend: Backend,
        emulate: bool,
        beside: bool,
        debug: bool,
        ways: Mapping[str, Callable[..., Any]],
    ) -> Job:
        """Of the rank that `backend` is on.

        emulate: wait as long as the plan's prices say instead of computing
        ways:    of `Groups`
        """
        ranks = [stage.place.ranks(plan.cluster.gpus_per_node) for stage in plan.stages]
        stage = next(n for n, own in enumerate(ranks) if backend.rank in own)
        first = ranks[stage][0]
        assert ranks[stage] == tuple(range(first, first + len(ranks[stage])))
        one = plan.stages[stage]
        groups = Groups(one.mesh, backend.rank - first, backend, first, ways)
        graphs = [part.graph for part in plan.stages]
        counting = Counting.of(plan.graph, plan.micro_batches, stages=graphs)
        counting.rows.check(plan.micro_batches)
        opaque = {k: backend.kernels.opaque(call) for k, call in traced.opaque.items()}
        whole = {**traced.params, **traced.buffers}
        aside = evaluated_links(plan)
        check_moved(plan, aside)
        run_state, model = RunState(one.seed), stage_figures(one).model
        emulator = Emulator(model, groups, run_state, plan.num_stages > 1) if emulate else None
        return cls(
            plan, ranks, stage, groups, run_state, opaque, counting,
            traced.evaluation.graph(plan.graph), traced.evaluation.names(plan.graph),
            aside, whole, emulator, beside, debug,
        )  # fmt: skip

    def executor(
        self,
        graph: Graph,
        plan: StagePlan,
        state: ModelState,
        wanted: frozenset[str] | None = None,
        counting: Counting | None = None,
        recorder: Recorder | None = None,
    ) -> Executor:
        """Runs `graph`, which is the plan's or has another batch.

        wanted:   tensors (or operators) that an evaluation needs; None to train
        counting: of an evaluation whose micro-batches add up
        recorder: of what runs
        """
        counting, idle = self.counting if wanted is None else counting, frozenset[str]()
        scales = None if counting is None else counting.scales()
        if wanted is None:
            idle = graph.evaluated_alone(unsent(figures(self.plan).travel.links, self.aside))
            plan = in_mode(plan, training=True)
            graph = plan.graph
        program = compile_program(
            graph, plan.ops, plan.edges, self.groups, self.run_state, self.opaque, wanted,
            plan.recomputed, by_input=not figures(self.plan).schedule.joint, scales=scales,
            idle=idle,
        )  # fmt: skip
        if wanted is None and plan.precision != "float32" and not self.emulator:
            check_kernels(program, plan.precision, self.groups.backend)
        if counting is not None and counting.padding is not None:
            skip_padding(program, counting.padding, self.groups, self.run_state)
        if self.emulator:
            self.emulator.replace(program, overlaps=bool(plan.buckets))
        rows = None if counting is None or self.emulator else counting.rows
        buckets = buckets_of(plan, program, self.groups) if wanted is None else ()
        late = late_uses(plan) if wanted is None else {}
        if recorder is not None:
            recorder.follow(program)
            buckets = tuple(map(recorder.exchange, buckets))
        elif (
            wanted is None
            and figures(self.plan).schedule.joint
            and not (self.debug or self.emulator or plan.turns)
        ):
            leaving = () if graph.gives_back else buckets
            program = in_chains(program, self.groups.backend, rows or Rows(), leaving, late)
        ahead = bool(buckets) and not plan.turns  # passes in turns would take each other's order
        return Executor(
            program, state, self.run_state, self.groups, self.debug, rows, buckets, ahead, late
        )


class Outgoing:
    """Tensors on their way out of a part, each kept until the last of its links has taken it.

    links: how many take a tensor, by its name
    """

    def __init__(self, links: Mapping[str, int]) -> None:
        self._links = links
        self._held: dict[tuple[int, str], Tensor] = {}
        self._left: Counter[tuple[int, str]] = Counter()

    def put(self, number: int, values: Values) -> None:
        """The tensors of micro-batch `number`."""
        for name, x in values.items():
            if name in self._links:
                self._held[number, name] = x
                self._left[number, name] = self._links[name]

    def take(self, number: int, name: str) -> Tensor:
        """For one of its links."""
        key = number, name
        self._left[key] -= 1
        return self._held[key] if self._left[key] else self._held.pop(key)


class Part:
    """One part's state and executor, and what its open micro-batches have brought and made.

    meets:           the kinds of passes in which the stage's devices communicate
    inputs:          of each open micro-batch, tensors that came
    returned:        the gradients of what was sent
    sent, gradients: tensors that go on, and the gradients of what came
    """

    def __init__(self, job: Job, plan: StagePlan) -> None:
        self.plan = plan
        self.state = ModelState(job.groups, job.whole)
        self.parameters: dict[str, Any] = {}
        self._holds = {op.attrs["name"]: op for op in plan.graph.ops if _is_state(op)}
        self._job = job
        self.feed = Feed(plan.graph, plan.ops, job.plan.micro_batches, job.groups)
        self.executor = job.executor(plan.graph, plan, self.state)
        self.meets = communicating_passes(plan)
        self.inputs: dict[int, Values] = {}
        self.returned: dict[int, Values] = {}
        self.sent = Outgoing({})
        self.gradients = Outgoing({})
        self._coming: dict[tuple[str, int], list[Arrival]] = {}

    def hold(self, name: str, whole: Tensor) -> None:
        """Place a parameter or buffer, if the part reads it."""
        op = self._holds.get(name)
        if op is None:
            return
        (nd,) = self.plan.ops[op.name].outs
        if op.kind == "buffer":
            self.state.add_buffer(name, whole, nd)
        else:
            trained = op.outputs[0] in self._job.plan.graph.needs_grad
            self.parameters[name] = self.state.add_parameter(name, whole, nd, trained)

    @property
    def trained(self) -> dict[str, Any]:
        """The parameters that get gradients, of this part or of others that hold them, by name."""
        graph = self._job.plan.graph
        return {
            name: p for name, p in self.parameters.items()
            if self._holds[name].outputs[0] in graph.needs_grad
        }  # fmt: skip

    def take(self, batch: Sequence[Tensor], rows: int | None = None) -> None:
        """Start an iteration on a global batch, or on so few `rows`."""
        self.inputs = dict(enumerate(self.feed.take(batch, rows)))
        self.returned = {m: {} for m in self.inputs}

    def give_back(self, number: int, tensor: str, gradient: Tensor) -> None:
        """One reader's gradient of a tensor that was sent in micro-batch `number`."""
        known = self.returned[number].get(tensor)
        self.returned[number][tensor] = gradient if known is None else known + gradient

    # ---- emulated compute

    def receive(self, kind: str, number: int, run: Resharding) -> Tensor:
        """What the pass `kind` of a micro-batch needs, on its way."""
        if self._job.emulator is None:
            return run.receive()
        return run.receive(self._coming.setdefault((kind, number), []))

    def wait_for(self, kind: str, number: int) -> None:
        """An emulated pass begins when what it needs is there; a real one waits by itself."""
        if self._job.emulator is None:
            return
        coming = self._coming.pop((kind, number), [])
        self._job.emulator.clock.drain()  # for what comes other ranks may wait for these
        if all(arrival.is_there for arrival in coming):
            return  # and makes up for an earlier sleep that ended late
        for arrival in coming:
            while not arrival.is_there:
                time.sleep(_BLINK_S)
        self._job.emulator.clock.free_at = time.perf_counter()

    def wait_for_transfers(self) -> None:
        """All transfers so far have ended; computation goes on then."""
        self._job.groups.backend.wait()
        if self._job.emulator is not None:
            clock = self._job.emulator.clock
            clock.free_at = max(clock.free_at, time.perf_counter())

    def compute_ends(self) -> None:
        """Wait until an emulated pass, whose results other stages wait for, has taken its time."""
        if self._job.emulator is not None and self._job.plan.num_stages > 1:
            self._job.emulator.clock.catch_up()


def _is_state(op: Op) -> bool:
    return op.kind in ("param", "buffer")
