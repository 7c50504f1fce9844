"""What a search found, as the plan that it becomes.

From a choice of strategies to placements of every operator and steps on every edge (`place`), to
the buckets in which gradients travel together (`travel`), and whether that fits the memory
(`Candidate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..cost.exchange import AT_THE_END, Bucketed
from ..cost.model import MemoryView
from ..cost.recompute import Recomputation
from ..cost.required import bucket_room, executor_peak, required_bytes
from ..cost.sharded_storage import Storage, split_storage, stored_placement
from ..cost.step_tensors import PlannedStep
from ..cost.tape import ALIGNMENT_BYTES
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..graph.regions import Blocks
from ..plans.schedule.buckets import best_buckets, best_travel, on_one_way
from ..plans.schedule.duplex import TurnsMaker, best_turns
from ..plans.schedule.orders import Turns
from ..plans.schedule.step import StepMaker
from ..sbp.collectives import Step
from ..sbp.layout import TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp, Placement
from ..sbp.redistribute import PathTable
from ..sbp.signature import Signature
from ..search.problem import Choice, SearchEnd, SearchResult
from .tables.tables import Tables


def place(
    tables: Tables, choice: Choice, paths: PathTable | None = None
) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
    """(operator name -> placements, (operator, input) -> steps), in graph order.

    paths: of the model's mesh and prices, if there is such a table already
    """
    graph, mesh = tables.grouping.graph, tables.model.cluster.mesh
    if paths is None:
        paths = PathTable(mesh, tables.model.comm.price, tables.model.comm.collectives)
    patterns: dict[str, PlannedOp] = {}  # the same object for operators that are placed alike
    storage: dict[str, Storage] = {}  # parameter's tensor -> how it is stored
    known: dict[tuple[int, int], list[PlannedOp]] = {}  # equal groups are placed once
    for owner, group in enumerate(tables.grouping.groups):
        table, strategy = tables.table_of(owner), tables.strategy(choice, owner)
        key = id(table), strategy
        if key not in known:
            composites = [table.composites[c] for c in table.assign[strategy]]
            known[key] = [
                _place_op(graph, op, [c.signatures[number] for c in composites])
                for number, op in enumerate(group.ops)
            ]
        patterns.update(zip((op.name for op in group.ops), known[key], strict=True))
        if group.sources:
            stored = tables.storage(choice, owner)
            storage.update((port.tensor, stored) for port in group.sources)
    _place_sources(graph, mesh, paths, patterns)
    ops = {op.name: patterns[op.name] for op in graph.ops}
    return split_storage(graph, tables.model.comm, storage, ops, _edges(graph, paths, patterns))


def _place_sources(
    graph: Graph, mesh: Mesh, paths: PathTable, patterns: dict[str, PlannedOp]
) -> None:
    """Add what is in no group, by what its readers in groups need."""
    known: dict[Hashable, PlannedOp] = {}
    sources = [op for op in graph.ops if op.name not in patterns]
    uses = {
        tensor: [
            patterns[user.name].ins[index]
            for user, index in graph.consumers[tensor]
            if user.name in patterns
        ]
        for op in sources
        for tensor in op.outputs
    }
    for op in sources:
        needs = tuple((*uses[tensor], tensor in graph.needs_grad) for tensor in op.outputs)
        key = graph.alike[op.name], needs
        if key not in known:
            known[key] = _place_source(graph, mesh, paths, op, [uses[t] for t in op.outputs])
        patterns[op.name] = known[key]


def _edges(
    graph: Graph, paths: PathTable, patterns: Mapping[str, PlannedOp]
) -> dict[tuple[str, int], PlannedEdge]:
    """Where something moves; between operators placed alike once."""
    known: dict[tuple[int, int, int, int], tuple[tuple[Step, ...], tuple[Step, ...]]] = {}
    edges: dict[tuple[str, int], PlannedEdge] = {}
    for op in graph.ops:
        own = patterns[op.name]
        for index, tensor in enumerate(op.inputs):
            producer = graph.producers[tensor]
            given, out = patterns[producer.name], producer.outputs.index(tensor)
            key = id(given), out, id(own), index
            if key not in known:
                spec = graph.tensors[tensor].spec
                forward = _steps(paths, spec, given.outs[out], own.ins[index])
                backward = _steps(paths, spec, own.grad_ins[index], given.grad_outs[out])
                known[key] = forward, backward
            forward, backward = known[key]
            if forward or backward:
                edges[op.name, index] = PlannedEdge(op.name, index, forward, backward)
    return edges


def _steps(
    paths: PathTable, spec: TensorSpec, source: NdSbp | None, target: NdSbp | None
) -> tuple[Step, ...]:
    if source is None or target is None or source == target:
        return ()
    return paths.path(spec, source, target)


def _place_op(graph: Graph, op: Op, signatures: list[Signature]) -> PlannedOp:
    def column(side: str, index: int) -> NdSbp:
        return NdSbp(tuple([getattr(s, side)[index] for s in signatures]))

    return PlannedOp(
        ins=tuple(column("ins", i) for i in range(len(op.inputs))),
        outs=tuple(column("outs", i) for i in range(len(op.outputs))),
        grad_outs=tuple(
            column("grad_outs", i) if tensor in graph.needs_grad else None
            for i, tensor in enumerate(op.outputs)
        ),
        grad_ins=tuple(
            column("grad_ins", i) if (op.name, i) in graph.gives_grad else None
            for i in range(len(op.inputs))
        ),
        inner_axes=tuple(a for a, s in enumerate(signatures) if s.inner is not None),
    )


def _place_source(
    graph: Graph, mesh: Mesh, paths: PathTable, op: Op, uses_of: Sequence[list[NdSbp]]
) -> PlannedOp:
    """A parameter as its one use needs it; an input as all its uses agree; constants whole.

    uses_of: what the readers of each output need
    """
    whole = NdSbp.broadcast(mesh.num_axes)
    outs = [whole for _ in op.outputs]
    grads: list[NdSbp | None] = [None for _ in op.outputs]
    for number, (tensor, uses) in enumerate(zip(op.outputs, uses_of, strict=True)):
        if op.kind == "param" and uses:
            stored = NdSbp(tuple(map(stored_placement, uses[0])))
            outs[number] = uses[0] if stored == uses[0] else stored
        elif op.kind == "input" and uses:
            outs[number] = _common(graph, paths, tensor, uses, whole)
        if tensor in graph.needs_grad:
            grads[number] = outs[number]
    ins = tuple(whole for _ in op.inputs)
    return PlannedOp(ins, tuple(outs), tuple(grads), tuple(None for _ in op.inputs))


def _common(graph: Graph, paths: PathTable, tensor: str, uses: list[NdSbp], whole: NdSbp) -> NdSbp:
    """The most split placement from which every use is a local slice."""

    def agree(placements: tuple[Placement, ...]) -> Placement:
        first = stored_placement(placements[0])
        return first if all(p == placements[0] for p in placements) else B

    common = NdSbp(tuple(map(agree, zip(*uses, strict=True))))
    spec = graph.tensors[tensor].spec
    local = all(step.is_free for use in uses for step in paths.path(spec, common, use))
    return common if local else whole


# Above a plan that ignores memory: no other one is looked for. 5 % gave away 1.7 % on GPT-0.35B on
# 2x8; 0.001 and 0.01 gave the same plans of it on 2x16, VGG13 on 64 and ViT-S in 0.4 GB on 2x8.
NEAR_FREE = 0.003
# Of the limit: a step's fullest moment was seen at 2.4 times the sum of its bytes when outputs and
# copies that no gradient reads counted; since then at 2.0 times. Without it ResNet-50 on 2x8 was
# planned in 1.08 times as long, with twice and four times of it as fast.
ROOMY = 0.125
Edges = Mapping[tuple[str, int], PlannedEdge]
_WORKED_OUT = (
    "placed", "_serial", "_ways", "_soonest", "maker", "_free_travel", "least_s", "travel",
    "step_s", "_serial_bytes", "excess_bytes", "needed_bytes", "_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A choice and the tables that it is of; `seconds` of an iteration, one task after the other.

    paths: of the tables' mesh and prices
    first: what it was made of, if its tables have no other strategies than what was chosen
    """

    tables: Tables
    result: SearchResult
    paths: PathTable
    first: Candidate | None = None

    def knowing(self, other: Candidate | None) -> Candidate:
        """This candidate, which takes over what was worked out for `other` if both are one plan."""
        if other is not None and self._is_same(other):
            known = ((name, other.__dict__.get(name)) for name in _WORKED_OUT)
            self.__dict__.update((name, value) for name, value in known if value is not None)
        return self

    def _is_same(self, other: Candidate) -> bool:
        """Whether the same is placed alike; tables of other strategies number theirs otherwise."""
        if other.tables is self.tables:
            return np.array_equal(other.result.choice, self.result.choice)
        if "placed" not in vars(other) or not math.isclose(other.seconds, self.seconds):
            return False
        alike = all(
            getattr(self.tables, name) == getattr(other.tables, name)
            for name in ("grouping", "model", "again", "micro_batches")
        )
        return alike and self.placed == other.placed

    def ended(self, end: SearchEnd) -> Candidate:
        """This candidate, as the best of a search that ended so."""
        return replace(self, result=replace(self.result, end=end)).knowing(self)

    def serial(self) -> Candidate:
        """The choice with the seconds of its serial step, if it was found at other prices."""
        seconds = self._serial.serial_s(self.tables.micro_batches)
        return replace(self, result=replace(self.result, cost=seconds)).knowing(self)

    @property
    def seconds(self) -> float:
        return self.result.cost

    @cached_property
    def placed(self) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
        """Placements and steps; where gradients travel in buckets, some take other ways."""
        return place(self.tables, self.result.choice, self.paths)

    @property
    def edges(self) -> Edges:
        """The plan's steps."""
        return self._edges_with(self.travel)

    def _edges_with(self, travel: Bucketed) -> Edges:
        return self.one_by_one.edges if travel[0] else self.placed[1]

    @cached_property
    def _serial(self) -> StepMaker:
        """What lists the tasks of its step without buckets."""
        tables = self.tables
        sizes = tables.grouping.graph, tables.model, tables.micro_batches
        return StepMaker(*sizes, *self.placed, tables.again)

    @cached_property
    def _ways(self) -> list[StepMaker]:
        """The same, and with other ways of gradients, which may be sooner in buckets."""
        other = on_one_way(self._serial) if self.tables.model.overlap else self._serial
        return [self._serial] if other is self._serial else [self._serial, other]

    @cached_property
    def _soonest(self) -> tuple[StepMaker, Bucketed]:
        """Of these the one whose step ends first, with its buckets."""
        found = [(*best_travel(maker), maker) for maker in self._ways]
        _, travel, maker = min(found, key=lambda item: item[0])
        return maker, travel

    @property
    def one_by_one(self) -> StepMaker:
        """What lists the tasks of its step, with one micro-batch in flight."""
        return self._ways[0] if len(self._ways) == 1 else self._soonest[0]

    @cached_property
    def maker(self) -> StepMaker:
        """What lists the tasks of its step, with micro-batches in flight in the best turns."""
        if self.tables.again.in_flight == 1 or self.tables.grouping.graph.is_stage:
            return self.one_by_one
        return TurnsMaker.of(self.one_by_one, best_turns(self.one_by_one))

    @property
    def turns(self) -> Turns:
        """Whose turn it is of the micro-batches in flight; () if each is alone."""
        return self.maker.turns if isinstance(self.maker, TurnsMaker) else ()

    @cached_property
    def travel(self) -> Bucketed:
        """The buckets in which gradients travel beside the backward pass, and how long these wait.

        They travel at its end where the copies that buckets need do not fit the memory.
        """
        if not self.tables.model.overlap:
            return AT_THE_END
        found, limit = self._free_travel, self.tables.model.limit_bytes
        if self.is_roomy or self._has_room_for(found):
            return found
        each = tuple((number,) for bucket in found[0] for number in bucket)
        tried = dict.fromkeys((found, (found[0], ()), (each, ())))
        for own in tried if self._serial_bytes <= limit else ():
            if self._fullest(self.tables.again, limit, own) <= limit:
                return own
        return AT_THE_END

    def _has_room_for(self, travel: Bucketed) -> bool:
        """Whether buckets are sure to fit beside the serial step, whose memory is soon worked out.

        Without it GPT-3 175B on 1024x8 devices has its first plan in 1.3 times as long.
        """
        if self.turns:
            return False
        model = self.tables.model
        step, rules = self._planned(self.tables.again, travel), model.memory_rules
        rooms = [
            bucket_room(replace(step, mesh=view.mesh), rules) / view.times
            for view in model.memory_views
        ]
        return self._serial_bytes + max(rooms) <= model.limit_bytes

    @cached_property
    def _free_travel(self) -> Bucketed:
        """The fastest buckets, whether or not they fit the memory."""
        return (best_buckets(self.maker), ()) if self.turns else self._soonest[1]

    @cached_property
    def least_s(self) -> float:
        """Seconds of an iteration with the best buckets, whether or not these fit the memory."""
        return self._seconds_with(self._free_travel) if self.tables.model.overlap else self.seconds

    @cached_property
    def step_s(self) -> float:
        """Seconds of an iteration with what overlaps; `seconds` are those of the serial step."""
        if not self.travel[0] and not self.turns:
            return self.seconds
        is_free = self.travel == self._free_travel
        return self.least_s if is_free else self._seconds_with(self.travel)

    def _seconds_with(self, travel: Bucketed) -> float:
        apart_s = self.one_by_one.exchange_s - self._serial.exchange_s
        saved_s = self.maker.latency_s(travel[0]) + self.maker.hidden_s(*travel)
        return self.seconds + apart_s - saved_s

    @cached_property
    def excess_bytes(self) -> float:
        """By how much a step's memory exceeds the limit; negative if it does not."""
        limit = self.tables.model.limit_bytes
        if limit == math.inf:
            return -math.inf
        if self.is_roomy:
            return self.result.memory - limit
        return self._serial_bytes - limit

    @cached_property
    def _serial_bytes(self) -> float:
        """Bytes of a step without buckets at its fullest moment, as `_fullest` has them."""
        return self._fullest(self.tables.again, self.tables.model.limit_bytes)

    @cached_property
    def needed_bytes(self) -> float:
        """What a step's memory is, whatever the limit."""
        return self._fullest(self.tables.again, math.inf)

    def fits_with(self, again: Recomputation) -> bool:
        """Whether a step fits if other blocks are recomputed."""
        limit = self.tables.model.limit_bytes
        return self._fullest(again, limit) <= limit

    def fewest_again(self, check: Callable[[], None]) -> int:
        """How many of its blocks, the first ones, must run again; with fewer it needs more memory.

        Tried is what straight lines say: of GPT-36B on 256 one number, not five.
        check: asked on the way, raises what ends the planning
        """
        again, limit = self.tables.again, self.tables.model.limit_bytes
        low, high = -1, len(again.blocks)  # the former does not fit
        guess, excess = high - 1, {high: self.excess_bytes}
        while low + 1 < high:
            check()
            own = replace(again, blocks=again.blocks[:guess])
            excess[guess] = self._fullest(own, limit) - limit
            low, high = (low, guess) if excess[guess] <= 0 else (guess, high)
            other = low if low >= 0 else min(n for n in excess if n > high)
            each = (excess[other] - excess[high]) / (high - other)
            is_bent = each <= 0 or len(excess) % 4 == 0
            guess = (low + high) // 2 if is_bent else high + math.ceil(excess[high] / each)
            guess = min(max(guess, low + 1), high - 1)
        return high

    def _fullest(self, again: Recomputation, limit: float, travel: Bucketed = AT_THE_END) -> float:
        """Bytes of a step at its fullest moment, which may be more or less than what adds up.

        Of autoddl's executor alone with buckets, which are not compiled, or above the limit.
        """
        rules, step = self.tables.model.memory_rules, self._planned(again, travel)

        def of(view: MemoryView) -> float:
            own = step if view.mesh == step.mesh else replace(step, mesh=view.mesh)
            if travel[0]:
                return executor_peak(own, rules).bytes / view.times
            return required_bytes(own, rules, limit * view.times) / view.times

        return max(map(of, self.tables.model.memory_views))

    @property
    def step(self) -> PlannedStep:
        """What runs on each device, with what is known of its memory."""
        return self._planned(self.tables.again, self.travel)

    @cached_property
    def _steps(self) -> dict[tuple[Blocks, Bucketed], PlannedStep]:
        return {}

    def _planned(self, again: Recomputation, travel: Bucketed) -> PlannedStep:
        """The step with these blocks run again and these buckets."""
        key, edges = (again.blocks, travel), self._edges_with(travel)
        if key not in self._steps and travel[0] and edges is self.placed[1]:
            self._steps[key] = self._planned(again, AT_THE_END).in_buckets(*travel)
        elif key not in self._steps:
            self._steps[key] = self._new_step(again, travel, edges)
        return self._steps[key]

    def _new_step(self, again: Recomputation, travel: Bucketed, edges: Edges) -> PlannedStep:
        graph, model = self.tables.grouping.graph, self.tables.model
        where = model.cluster.mesh, model.cluster.device.kind
        known = again, travel[0], model.ema, self.turns if again.in_flight > 1 else (), travel[1]
        sizes = self.tables.micro_batches, model.optimizer
        return PlannedStep(graph, *where, *sizes, self.placed[0], edges, *known)

    @property
    def fits(self) -> bool:
        """Whether its fullest moment does."""
        return self.is_roomy or bool(self.travel[0]) or self.excess_bytes <= 0

    @property
    def is_roomy(self) -> bool:
        """Whether its bytes as they add up are so few that its fullest moment is sure to fit."""
        rounded_up = ALIGNMENT_BYTES * len(self.tables.grouping.graph.tensors)
        return self.result.memory + rounded_up <= ROOMY * self.tables.model.limit_bytes

    @property
    def key(self) -> tuple[int, Blocks]:
        """Its micro-batches, and the blocks that are run again."""
        return self.tables.micro_batches, self.tables.again.blocks

    @property
    def is_near_free(self) -> bool:
        """True if hardly anything is lost to the memory limit."""
        return self.seconds <= self.result.free_cost * (1 + NEAR_FREE)
