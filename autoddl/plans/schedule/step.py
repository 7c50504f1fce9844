"""The step of one mesh as a schedule: its tasks, in the one order that all its devices share.

The tasks follow from what a plan says: computation of each operator, forward and backward; the
collectives between operators and inside them; gathers of parameters that are stored split; and the
exchange of gradients, each by itself or in buckets (`cost.exchange`). A device has a queue for
computation and one for communication, both in the order of the list:

    computation        holds the queue of computation
    collective         both, as the next operator waits for it: none runs beside computation
    exchange           without buckets both, after the last pass. In a bucket the queue of
                       communication, from when its members' gradients are there, earlier buckets
                       have left and it has waited as long as the plan says (`buckets.best_waits`);
                       the next collective waits for it, computation does not.
                       Of a pipeline stage that gives gradients back, after the last pass, too:
                       stages before it wait for these, and while they compute it has time. Were
                       all stages equal, none of them would be done later for it than the first
    gather             of a parameter that is stored split (ZeRO's stage 3), without buckets both.
                       With buckets the queue of communication: it is asked for one reader ahead,
                       when the reader before it in the pass begins, and so before the gradients of
                       that one leave. Its own reader waits for it. 175 billion parameters in one
                       micro-batch on 128 x 8 devices wait 200 s for gathers else, of 570 s

Every device runs the same list, and no task needs one after it, so that nothing can deadlock:
`simulate.run` refuses any other list. The serial step is the same list on one queue. What overlaps
is

    hidden = seconds of all tasks, one after the other  -  end of the last one

and is nothing without buckets. Where a machine file says that computation and communication slow
each other down, both take longer while they run at once. From the third micro-batch on, passes are
like the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...cost.account import Trips, inner_of, inner_trip
from ...cost.exchange import Buckets, Exchange, Waits, exchanges, leaving
from ...cost.memory import placed_alike
from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...graph.graph import SOURCE_KINDS, Graph, Op
from ...graph.placed import PlannedEdge, PlannedOp
from ...sbp import collectives
from .passes import Cause, Course, Free, Operator, Turn
from .simulate import Queued, Slowdown, run

COMPUTING: tuple[Cause, ...] = ("forward", "backward")
_COMPUTE, _COMMUNICATE = 0, 1
_Each = tuple[float, ...]
_Seconds = tuple[float, float, _Each, _Each, _Each, _Each, tuple[float, float], _Each]
_ALIKE = 3  # micro-batches: any further one takes as long as the last of these
_ROUNDING = 1e-12  # of a serial step: what is hidden is a difference of sums of all its tasks


@dataclass(frozen=True, slots=True)
class StepTask:
    """A task of a step; `operator`: which it is of, or the last one before a bucket leaves.

    members: of an exchange, the numbers of the gradients
    needs:   of a bucket, the numbers of the tasks that make its gradients; of a gather that is
             ahead, the last one that computes before; of a reader, its gathers that were
    """

    cause: Cause
    operator: str
    seconds: float
    micro_batch: int
    members: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()

    @property
    def queues(self) -> tuple[int, ...]:
        if self.cause in COMPUTING:
            return (_COMPUTE,)
        return (_COMMUNICATE,) if self.needs else (_COMPUTE, _COMMUNICATE)


@dataclass(frozen=True)
class Step:
    """The tasks of a step, in order."""

    tasks: tuple[StepTask, ...]
    buckets: Buckets
    exchanges: tuple[Exchange, ...]
    slowdown: Slowdown = Slowdown()

    @cached_property
    def times(self) -> tuple[list[float], list[float]]:
        """The start and end of each task."""
        return run([Queued(t.seconds, t.queues, t.needs) for t in self.tasks], self.slowdown)

    @cached_property
    def end_s(self) -> float:
        """Of the last task."""
        return max(self.times[1], default=0.0)

    @cached_property
    def hidden_s(self) -> float:
        """Seconds of communication that run beside computation."""
        if not self.buckets:
            return 0.0
        return sum(task.seconds for task in self.tasks) - self.end_s


@dataclass(frozen=True)
class StepMaker:
    """Makes the step of a mesh's plan, with one choice of buckets or another.

    again: which blocks are run again before their backward pass
    """

    graph: Graph
    model: CostModel
    micro_batches: int
    ops: Mapping[str, PlannedOp]
    edges: Mapping[tuple[str, int], PlannedEdge]
    again: Recomputation

    @cached_property
    def slowdown(self) -> Slowdown:
        """Of what overlaps: buckets, and micro-batches in flight."""
        link = self.model.cluster.slowest_link
        return Slowdown(link.computation_slowdown_ratio, link.collective_slowdown_ratio)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        return exchanges(self.graph, self.ops, self.edges)

    @cached_property
    def prices(self) -> tuple[tuple[float, float], ...]:
        """Of each exchange (seconds of latency, further seconds), once."""
        trips = [self._trips.along(e.spec, e.given, e.steps) for e in self.exchanges]
        return tuple((trip.alpha_s, trip.seconds - trip.alpha_s) for trip in trips)

    def bucket_s_along(
        self, members: Sequence[int], ways: Sequence[tuple[collectives.Step, ...]]
    ) -> float:
        """Seconds of the exchange of a bucket whose gradients take these steps, each its own."""
        pairs = zip((self.exchanges[n] for n in members), ways, strict=True)
        trips = [self._trips.along(one.spec, one.given, steps) for one, steps in pairs]
        return trips[0].alpha_s + sum(trip.seconds - trip.alpha_s for trip in trips)

    @cached_property
    def exchange_s(self) -> float:
        """Of all exchanges of a step, each by itself."""
        return self.exchange_s_of(self.micro_batches)

    def exchange_s_of(self, micro_batches: int) -> float:
        """The same for so many micro-batches."""
        times = [micro_batches if e.is_often else 1 for e in self.exchanges]
        return sum(n * sum(price) for n, price in zip(times, self.prices, strict=True))

    @cached_property
    def backward_s(self) -> float:
        """Of computation in one backward pass, with what is run again for it."""
        again = self.again.block_of
        return sum(o.backward_s + o.forward_s * (o.op.name in again) for o in self.operators)

    def bucket_s(self, members: Sequence[int]) -> float:
        """Seconds of the exchange of a bucket."""
        return self.prices[members[0]][0] + sum(self.prices[n][1] for n in members)

    def step(self, buckets: Buckets, micro_batches: int | None = None, waits: Waits = ()) -> Step:
        """With the gradients in `buckets`; () for each by itself after the last pass.

        micro_batches: so many; None for those of the plan, but three at most
        """
        places = leaving(self.graph, self.exchanges, buckets, waits) if waits and buckets else []
        made = _Making(self, buckets, places)
        count = micro_batches or min(self.micro_batches, _ALIKE)
        made.start()
        for number in range(count):
            made.forward(number)
            made.backward(number, number == count - 1)
        made.finish(count - 1)
        return Step(tuple(made.tasks), buckets, self.exchanges, self.slowdown)

    def end_s(self, buckets: Buckets, micro_batches: int, waits: Waits = ()) -> float:
        """`step(buckets, micro_batches, waits).end_s` but for rounding, without the tasks."""
        if not buckets:
            return self.serial_s(micro_batches)
        forward, backward = self.courses
        every, made = self.exchanges, backward.made
        needed = [max(made[n] for n in bucket) for bucket in buckets]
        if waits:
            places = leaving(self.graph, every, buckets, waits)
            needed = [backward.closes.get(place, -1) for place in places]
        if self.slowdown or -1 in needed:
            return self.step(buckets, micro_batches, waits).end_s
        last = [(at, self.bucket_s(b)) for at, b in zip(needed, buckets, strict=True)]
        often = [e for e, b in zip(last, buckets, strict=True) if every[b[0]].is_often]
        after_s = 0.0
        if self.graph.gives_back:
            after_s, last = sum(s for _, s in last) - sum(s for _, s in often), often
        free = Free(self._first_s, self._first_s)
        for number in range(micro_batches):
            free = forward.run(free)
            free = backward.run(free, last if number == micro_batches - 1 else often)
        return max(free.compute_s, free.communicate_s) + after_s

    def serial_s(self, micro_batches: int) -> float:
        """Of a step of so many micro-batches, one task after the other."""
        passes_s = self._first_s + micro_batches * (self._forward.seconds + self._backward.seconds)
        return passes_s + self.exchange_s_of(micro_batches)

    def hidden_s(self, buckets: Buckets, waits: Waits = ()) -> float:
        """Seconds of communication that run beside computation, in the whole step."""
        count, most = self.micro_batches, min(self.micro_batches, _ALIKE)
        found = self._hidden_s(buckets, most, waits)
        if not buckets or count <= _ALIKE:
            return found
        return found + (count - _ALIKE) * (found - self._hidden_s(buckets, _ALIKE - 1, waits))

    def hidden_in(self, buckets: Buckets, waits: Waits = ()) -> tuple[float, float]:
        """Of `hidden_s`, what each micro-batch hides, and what is hidden once an iteration."""
        one_s = self._hidden_s(buckets, 1, waits)
        often = any(e.is_often for e in self.exchanges) or any(own.again for own in self.operators)
        each_s = self._hidden_s(buckets, 2, waits) - one_s if buckets and often else 0.0
        return each_s, one_s - each_s

    def _hidden_s(self, buckets: Buckets, micro_batches: int, waits: Waits) -> float:
        if not buckets:
            return 0.0
        serial_s, saved_s = self.serial_s(micro_batches), self.latency_s(buckets, micro_batches)
        found = serial_s - saved_s - self.end_s(buckets, micro_batches, waits)
        return found if abs(found) > _ROUNDING * serial_s else 0.0

    def latency_s(self, buckets: Buckets, micro_batches: int | None = None) -> float:
        """Seconds that the gradients in `buckets` save as they pay their latencies together.

        micro_batches: so many; None for those of the plan
        """
        found, count = 0.0, micro_batches or self.micro_batches
        for bucket in buckets:
            times = count if self.exchanges[bucket[0]].is_often else 1
            found += times * (len(bucket) - 1) * self.prices[bucket[0]][0]
        return found

    @cached_property
    def ready_s(self) -> Mapping[int, float]:
        """When each gradient is there in a backward pass, if no exchange delays it."""
        return self._backward.made_s

    @cached_property
    def _turns(self) -> tuple[tuple[Turn, Turn], ...]:
        """Of each operator, forward and backward."""
        return tuple((own.forward, own.backward) for own in self.operators)

    def forward_turns(self) -> Iterator[Turn]:
        """Of a forward pass."""
        return (forward for forward, _ in self._turns)

    def backward_turns(self) -> Iterator[Turn]:
        """Of a backward pass, with the forward passes of what is run again for it."""
        again, inside = self.again.block_of, defaultdict[int, list[Turn]](list)
        for forward, _ in self._turns:
            if forward.operator in again:
                inside[again[forward.operator]].append(forward)
        for _, backward in reversed(self._turns):
            yield from inside.pop(again.get(backward.operator, -1), ())
            yield backward

    @cached_property
    def _forward(self) -> Course:
        return Course.of(tuple(self.forward_turns()))

    @cached_property
    def _backward(self) -> Course:
        return Course.of(tuple(self.backward_turns()))

    @cached_property
    def courses(self) -> tuple[Course, Course]:
        """The forward and the backward pass with gathers one reader ahead."""
        if not any(own.again for own in self.operators):
            return self._forward, self._backward
        passes = self.forward_turns(), self.backward_turns()
        forward, backward = (Course.of(tuple(turns), is_ahead=True) for turns in passes)
        return forward, backward

    @cached_property
    def _first_s(self) -> float:
        return sum(sum(own.first) for own in self.operators)

    @cached_property
    def _trips(self) -> Trips:
        return Trips(self.model)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Those that run, in graph order; those that are placed alike take the same seconds."""
        number_of = {e.key: number for number, e in enumerate(self.exchanges)}
        alike = placed_alike(self.graph, self.ops, self.edges)
        known: dict[Hashable, _Seconds] = {}
        found: list[Operator] = []
        for op in self.graph.ops:
            if op.kind in SOURCE_KINDS:
                continue
            numbers = [number_of.get((op.name, index)) for index in range(len(op.inputs))]
            travels = tuple(number is not None for number in numbers)
            key = alike[op.name], op.name in self.again.block_of, travels
            if key not in known:
                known[key] = self._seconds_of(op, travels)
            found.append(Operator(op, *known[key], tuple(n for n in numbers if n is not None)))
        return tuple(found)

    def _seconds_of(self, op: Op, travels: Sequence[bool]) -> _Seconds:
        """travels: whether each input's gradient is one of the exchanges"""
        graph, trips, placed = self.graph, self._trips, self.ops[op.name]
        free = op.name in graph.free_ops
        forward_s, backward_s = (0.0, 0.0) if free else trips.seconds(graph, op, placed)
        first, again, arrive, back = [], [], [], []
        for index, tensor in enumerate(op.inputs):
            edge = self.edges.get((op.name, index))
            if edge is None:
                continue
            producer, spec = graph.producers[tensor], graph.tensors[tensor].spec
            given = self.ops[producer.name].outs[producer.outputs.index(tensor)]
            is_param, returned = producer.kind == "param", placed.grad_ins[index]
            kind = arrive if not is_param else again if edge.zero_stage == 3 else first
            kind.append(trips.along(spec, given, edge.forward).seconds)
            if not travels[index] and edge.backward and returned is not None:
                back.append(trips.along(spec, returned, edge.backward).seconds)
        inner = 0.0, 0.0
        if placed.inner_axes:
            one, counts = inner_trip(graph, trips, op, placed).seconds, inner_of(graph, op)
            has_grad = any(o in graph.needs_grad for o in op.outputs)
            inner = counts.forward * one, counts.backward * one * has_grad
        first, arrive, back = (
            tuple(seconds for seconds in found if seconds) for found in (first, arrive, back)
        )
        gathers = tuple(again), () if op.name in self.again.block_of else tuple(again)
        return forward_s, backward_s, first, *gathers, arrive, inner, back


@dataclass
class _Making:
    """A step that is being put down, task by task.

    places: behind which operator's backward pass each bucket leaves, if one waits
    ready:  exchange -> the number of the task that has made its gradient
    left:   how many buckets have left
    passes: how many operators have had their backward pass
    ahead:  the gathers of the next turn that has some, once they are put down
    """

    maker: StepMaker
    buckets: Buckets
    places: Sequence[int] = ()
    tasks: list[StepTask] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    left: int = 0
    passes: int = 0
    ahead: tuple[int, ...] | None = None
    last: int = -1  # number of the last task that computes

    def start(self) -> None:
        for own in self.maker.operators:
            self._collectives("gather", own.op.name, own.first, 0)

    def forward(self, micro_batch: int) -> None:
        for turn, following in self._with_following(self.maker.forward_turns()):
            self._take(turn, micro_batch, following)

    def backward(self, micro_batch: int, is_last: bool) -> None:
        self.left = self.passes = 0
        self.ready.clear()
        for turn, following in self._with_following(self.maker.backward_turns()):
            self._take(turn, micro_batch, following)
            if turn.cause == "backward":
                self._made(turn, micro_batch, is_last)

    def finish(self, micro_batch: int) -> None:
        """What has not left: all that travels once, if there are no buckets or they leave last."""
        assert self.left in (0, len(self.buckets)), "the buckets have all gradients, each once"
        every = self.maker.exchanges
        left = self.buckets or tuple((number,) for number in range(len(every)))
        for members in left if not self.buckets or self.maker.graph.gives_back else ():
            if not every[members[0]].is_often:
                self._exchange(every[members[0]].op, members, micro_batch)

    def _with_following(self, turns: Iterator[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
        """Of a pass: each turn, and the one whose gathers are asked for meanwhile."""
        every = tuple(turns)
        gather = iter([turn for turn in every if turn.gathers][1:] if self.buckets else ())
        for turn in every:
            yield turn, next(gather, None) if turn.gathers else None

    def _take(self, turn: Turn, micro_batch: int, following: Turn | None) -> None:
        """following: whose gathers are asked for before this one computes"""
        name, needs = turn.operator, ()
        if turn.gathers and self.ahead is not None:
            needs, self.ahead = self.ahead, None
        else:
            self._collectives("gather", name, turn.gathers, micro_batch)
        self._collectives("collective", name, turn.before, micro_batch)
        if following is not None:
            first = len(self.tasks)
            after = (self.last,) if self.last >= 0 else ()
            for seconds in filter(None, following.gathers):
                own = "gather", following.operator, seconds, micro_batch
                self.tasks.append(StepTask(*own, needs=after))
            self.ahead = tuple(range(first, len(self.tasks)))
        if turn.seconds:
            self.last = len(self.tasks)
            task = StepTask(turn.cause, name, turn.seconds, micro_batch, needs=needs)
            self.tasks.append(task)
        self._collectives("collective", name, turn.after, micro_batch)

    def _made(self, turn: Turn, micro_batch: int, is_last: bool) -> None:
        """Its parameters' gradients are there: buckets may leave."""
        every = self.maker.exchanges
        self.passes += 1
        for number in turn.made:
            if not self.buckets and every[number].is_often:
                self._exchange(turn.operator, (number,), micro_batch)
            self.ready[number] = self.last
        while self.left < len(self.buckets):
            members = self.buckets[self.left]
            if every[members[0]].is_often or (is_last and not self.maker.graph.gives_back):
                is_early = self.places and self.places[self.left] >= self.passes
                if is_early or not all(number in self.ready for number in members):
                    return
                made = self.last if self.places else max(self.ready[n] for n in members)
                needs = (made,) if self.last >= 0 else ()
                self._exchange(turn.operator, members, micro_batch, needs)
            self.left += 1

    def _exchange(
        self,
        operator: str,
        members: tuple[int, ...],
        micro_batch: int,
        needs: tuple[int, ...] = (),
    ) -> None:
        seconds = self.maker.bucket_s(members)
        self.tasks.append(StepTask("exchange", operator, seconds, micro_batch, members, needs))

    def _collectives(
        self, cause: Cause, operator: str, seconds: Sequence[float], micro_batch: int
    ) -> None:
        self.tasks += [StepTask(cause, operator, s, micro_batch) for s in seconds if s]
