"""The liveness of a planned step's tensors, and with it the peak memory of a device.

    parameters  there all the time, as are the optimizer's slots and the batch
    activations from the operator that makes them to the last one that reads them, which is often
                one of the backward pass
    gradients   of activations: until their producer's backward pass took them; of parameters: until
                the update, and with micro-batches all the time
    buffers     of redistributions: until their reader, forward or backward, has run; while one
                travels, there are more (`collectives`)

    in flight   (h - 1) x what a forward pass leaves for its backward pass, with h micro-batches in
                flight in a stage of a pipeline; in turns on one mesh, what the others hold after
                their last action, at the turn where all hold most (`tape.held_in_turns`)

`StepTape` writes down the step as autoddl's executor runs it: of each operator what the back end's
rules say is kept until its backward pass, and gradients of parameters until the end of the step;
views and slices of rows are free. What is stored split is gathered before the step and kept; in
ZeRO's stage 3 it is gathered before each pass of its one reader, which is then the only one alive,
or as that is run again, until its backward pass; with buckets one reader ahead, and of these the
largest counts all the time. From stage 2 on its gradient is reduced as soon as it is there. Of a
bucket the gradients are laid out as one tensor, which takes their place once it is whole, and then
travels, with micro-batches beside the passes that follow, until the next one does. Both wait if the
plan says so. Other gradients travel at the end.

What an operator keeps beside its inputs and outputs, and what it needs meanwhile, is told by the
rules of the back end (`memory_rules.MemoryRules`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..graph.graph import SOURCE_KINDS, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step
from ..sbp.placement import NdSbp
from ..sbp.signature import find_rule
from .account import inner_of
from .collectives import Travel
from .exchange import Exchange, departures, exchanges
from .memory_rules import OperatorMemory
from .model import OPTIMIZER_SLOTS
from .step_tensors import Key, OpPullback, StepTensors, view_strides
from .tape import Strand, Tape, aligned, held_in_turns, strand_of

STATE_BYTES = 4  # an element of the optimizer's state, float32 also where parameters are shorter


@dataclass
class StepTape(StepTensors):
    """Builds the tape of the step `plan`, as the executor runs it.

    operators: what they hold on the back end
    in_flight: micro-batches whose forward pass is kept
    is_first:  of the micro-batches, the first one's backward pass is meant, before the sums
    course_of: `course`, or that of a longer step of which tapes are a part
    marks:     actions so far, and by cause bytes that are there all the time, after each operator's
               forward pass, and then, in reverse order, after each one's backward pass
    """

    operators: OperatorMemory = field(kw_only=True)
    in_flight: int = field(kw_only=True, default=1)
    is_first: bool = field(kw_only=True, default=False)
    course_of: Callable[[StepTape], Strand] = field(kw_only=True, default=lambda s: s.course())
    marks: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    _filled: dict[Key, str] = field(default_factory=dict)
    _laid: Counter[int] = field(default_factory=Counter)  # gradients in a bucket, by its first one
    _travelling: list[str] = field(default_factory=list)  # buckets, beside what is computed
    _held: dict[Key, tuple[Op, int, str, NdSbp]] = field(default_factory=dict)  # that wait
    _passes: int = 0  # operators whose backward pass is over
    # operator -> local bytes of its inputs and outputs
    _local: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    def build(self) -> Tape:
        for op in self.plan.graph.ops:
            self._forward(op)
            self.marks.append((len(self.tape.actions), dict(self.tape.always)))
        self.tape.turn = len(self.tape.actions)
        made_again: set[int] = set()
        for op in reversed(self.plan.graph.ops):
            block = self.plan.again.block_of.get(op.name)
            if block is not None and block not in made_again:
                made_again.add(block)
                self._run_again(block)
            if op.kind == "loss":
                self._arrive(op.inputs[0], self.new("gradient of the loss", (), 4.0, "gradients"))
            elif op.kind == "stage_output":
                self._return(op)
            elif op.kind == "stage_input":
                sent = [self.arrived[o] for o in op.outputs if o in self.arrived]
                self.tape.act(f"gradients that {op.name} gives back", sent)
            elif op.kind == "param":
                self._update(op)
            elif any(self.arrived.get(o) for o in op.outputs):
                self._backward(op)
            if op.kind not in SOURCE_KINDS:
                self._leave()
            self.marks.append((len(self.tape.actions), dict(self.tape.always)))
        self.tape.kept.update(self._travelling)
        if self.ahead_bytes:
            self.tape.keep("redistribution", self.ahead_bytes)
        if self.plan.turns:
            self.tape.keep("in flight", self._beside())
        if not self.is_first:
            self._synchronise()
        if self.in_flight > 1:
            self.tape.keep("in flight", self.held_for_others(range(self.tape.turn)))
        return self.tape

    def held_for_others(self, actions: range) -> int:
        """Bytes of micro-batches before their backward pass, by these actions; none in turns."""
        others = 0 if self.plan.turns else self.in_flight - 1
        return others * self.tape.bytes_across(actions) if others else 0

    def _beside(self) -> int:
        """How many bytes more all strands hold at their peak than this one does at its own.

        This is the last strand, whose gradients fill the buckets, or the first one, whose gradients
        become the sums.
        """
        this = 0 if self.is_first else self.in_flight - 1
        strands = [self if n == this else self._strand(n) for n in range(self.in_flight)]
        courses = [self.course_of(strand) for strand in strands]
        most = held_in_turns(courses, self.plan.turns)
        return max(0, most - max(courses[this].held, default=0))

    def _strand(self, number: int) -> StepTape:
        """The tape of another strand."""
        is_last = number == self.in_flight - 1
        plan = replace(self.plan, turns=(), buckets=self.plan.buckets if is_last else ())
        step = StepTape(plan, operators=self.operators, in_flight=1)
        step.build()
        return step

    def course(self) -> Strand:
        """What turns of several strands are made of."""
        runs = [op.kind not in SOURCE_KINDS for op in self.plan.graph.ops]
        return strand_of(self.tape, [count for count, _ in self.marks], runs)

    def moving_bytes(self, travel: Travel) -> float:
        return self.operators.moving_bytes(travel)

    # ---- forward

    @cached_property
    def _members(self) -> dict[int, list[Op]]:
        """The operators of each block that is run again."""
        found: dict[int, list[Op]] = defaultdict(list)
        for op in self.plan.graph.ops:
            number = self.plan.again.block_of.get(op.name)
            if number is not None:
                found[number].append(op)
        return found

    def _run_again(self, number: int) -> None:
        """The forward pass of a block, once the gradient of what leaves it is there."""
        members = self._members[number]
        given = [self.arrived[o] for op in members for o in op.outputs if o in self.arrived]
        made: set[str] = set()
        for op in members:
            first = not any(self.tape.root(self.value(i)) in made for i in op.inputs)
            self._forward(op, given[-1:] if first else [], again=True)
            made.update(o for o in map(self.value, op.outputs) if o not in self.tape.views)

    def _forward(self, op: Op, after: Sequence[str] = (), again: bool = False) -> None:
        """The forward pass of an operator, once the tensors `after` are there.

        again: it is run again, and its outputs get new names
        """
        planned = self.plan.ops[op.name]
        if op.kind in ("param", "buffer", "input"):
            self._source(op, planned)
            return
        names = [self._receive(op, index, again) for index in range(len(op.inputs))]
        if op.kind in ("loss", "stage_output"):
            self.tape.act(op.name, names)
            return
        if again:
            made = (*op.outputs, self.extra_of(op))
            self.newest.update({tensor: self.name(tensor) for tensor in made})
        what = f"{op.name} again" if again else op.name
        (first, *_) = results = [self.value(tensor) for tensor in op.outputs]
        self._note_strides(op, names)
        if self._is_view(op, names):
            self.tape.act(what, [*names, *after])
            self.tape.view(first, names[0])
            return
        if op.name not in self._local:  # equal when a block is run again
            sides = (op.inputs, planned.ins), (op.outputs, planned.outs)
            ins, outs = ([*map(self.bytes_of, names, nds)] for names, nds in sides)
            self._local[op.name] = ins, outs
        ins, outs = self._local[op.name]
        makes = [(t, n, "activations") for t, n in zip(results, outs, strict=True)]
        spec = self.plan.graph.spec(op)
        copies = [0.0] * len(names)
        if any(name in self.strides for name in names):
            received = zip(names, op.inputs, planned.ins, strict=True)
            copies = [self.copied_bytes(name, tensor, nd) for name, tensor, nd in received]
        kept = self.operators.kept_bytes(spec, planned, ins, outs, copies)
        workspace = self.operators.workspace_bytes(spec, ins, copies) + self._room(op)[0]
        if kept and any(o in self.plan.graph.needs_grad for o in op.outputs):
            makes.append((self.value(self.extra_of(op)), kept, "activations"))
            self.extras.add(self.value(self.extra_of(op)))
        over = {first: names[0]} if self._overwrites(op) else {}
        self.tape.act(what, [*names, *after], makes, workspace, over)

    def _room(self, op: Op) -> tuple[int, int]:
        """Bytes for the formulas of collectives inside an operator, forward and backward."""
        if not self.plan.ops[op.name].inner_axes:
            return 0, 0
        of = inner_of(self.plan.graph, op)
        size = self.bytes_of(op.inputs[of.tensor], self.plan.ops[op.name].ins[of.tensor])
        return aligned(of.room[0] * size), aligned(of.room[1] * size)

    def _overwrites(self, op: Op) -> bool:
        """Whether its output takes the place of its first input: autograd would miss that."""
        del op
        return False

    def _receive(self, op: Op, index: int, again: bool) -> str:
        """The name of an input, which travels to where the operator needs it."""
        tensor = op.inputs[index]
        edge = self.plan.edges.get((op.name, index))
        if edge is None:
            name = self.value(tensor)
        elif edge.zero_stage < 3 and self.plan.graph.producers[tensor].kind == "param":
            name = self._receive_parameter(op, edge, again)
        else:
            what = f"input {index} of {op.name}"
            name = self.travel(what, tensor, self.value(tensor), self.given(tensor), edge.forward)
        self.received[op.name, index] = name
        return name

    def _receive_parameter(self, op: Op, edge: PlannedEdge, again: bool) -> str:
        """Receive a parameter that stays: the executor fetches it at the start of a step."""
        tensor = op.inputs[edge.index]
        if again:
            return self.received[op.name, edge.index]
        source = self.given(tensor)
        name = self.name(f"always:{tensor}")
        ways = self._route(source, edge.forward)
        moves = not all(self.travel_of(tensor, tensor, way).is_view for way in ways)
        size = self.bytes_of(tensor, self.plan.ops[op.name].ins[edge.index])
        self.tape.keep("redistribution", size if moves else 0)
        return name

    def _is_view(self, op: Op, names: Sequence[str]) -> bool:
        del names
        return self.value(op.outputs[0]) in self.strides

    def _note_strides(self, op: Op, names: Sequence[str]) -> None:
        """Note how the output of a view lies in its input."""
        rule = find_rule(op.kind)
        if rule is None or not rule.view:
            return
        given = self.strides_of(names[0], op.inputs[0])
        strides = view_strides(self.plan.graph.spec(op), given)
        if strides is not None:
            self.strides[self.value(op.outputs[0])] = strides

    def _return(self, op: Op) -> None:
        """The gradient of what has been sent to another stage, as that stage gives it back."""
        (tensor,), (nd,) = op.inputs, self.plan.ops[op.name].grad_ins
        if nd is None:
            return
        gradient = self.new(
            f"gradient of {tensor} from a later stage", (), self.bytes_of(tensor, nd), "gradients"
        )
        edge = self.plan.edges.get((op.name, 0))
        steps = edge.backward if edge else ()
        what = f"gradient of input 0 of {op.name}"
        self._arrive(tensor, self.travel(what, tensor, gradient, nd, steps))

    def _source(self, op: Op, planned: PlannedOp) -> None:
        (tensor,), (nd,) = op.outputs, planned.outs
        size = self.bytes_of(tensor, nd)
        self.tape.view(tensor, f"always:{tensor}")
        if op.kind == "input":
            self.tape.keep("inputs", size * self.plan.micro_batches)
            return
        self.tape.keep("parameters", size)
        if tensor in self.plan.graph.needs_grad:
            self._keep_state(tensor, size)
            if self.plan.ema:
                self.tape.keep("average", size)

    def _keep_state(self, tensor: str, size: float) -> None:
        spec = self.plan.graph.tensors[tensor].spec
        slot = size / spec.item_bytes * max(STATE_BYTES, spec.item_bytes)
        for _ in range(OPTIMIZER_SLOTS[self.plan.optimizer]):
            self.tape.keep("optimizer", slot)
        if spec.item_bytes < STATE_BYTES:
            self.tape.keep("optimizer", slot)  # the master copy that is updated
            self._keep_master_gradient(slot)

    def _keep_master_gradient(self, slot: float) -> None:
        """Keep the gradient of the master copy, which is set after the last micro-batch."""
        self.tape.keep("gradients", slot)

    # ---- backward

    _adds_in_place = False  # a sum of gradients in the place of one of them

    def _arrive(self, tensor: str, gradient: str, nd: NdSbp | None = None) -> None:
        """Add to the gradient of a tensor, which is placed as its producer takes it, or as `nd`."""
        before = self.arrived.get(tensor)
        if before is None:
            self.arrived[tensor] = gradient
            return
        producer = self.plan.graph.producers[tensor]
        nd = nd or self.plan.ops[producer.name].grad_outs[producer.outputs.index(tensor)]
        assert nd is not None
        self.arrived[tensor] = self.new(
            f"sum of gradients of {tensor}", [before, gradient], self.bytes_of(tensor, nd),
            "gradients", over=before if self._adds_in_place else "",
        )  # fmt: skip

    def _backward(self, op: Op) -> None:
        self._fetch_again(op)
        pull = OpPullback(self, op)
        self.operators.pull_back(pull)
        self.tape.actions[-1].workspace += self._room(op)[1]
        planned = self.plan.ops[op.name]
        for index, tensor in enumerate(op.inputs):
            gradient, nd = pull.given.get(index), planned.grad_ins[index]
            if gradient is None or nd is None:
                continue
            producer = self.plan.graph.producers[tensor]
            edge = self.plan.edges.get((op.name, index))
            if producer.kind == "param":
                if self._leaving and edge is not None and edge.zero_stage > 1:
                    self._held[op.name, index] = op, index, gradient, nd
                else:
                    self._use(op, index, gradient, nd)
                continue
            what = f"gradient of input {index} of {op.name}"
            steps = edge.backward if edge else ()
            self._arrive(tensor, self.travel(what, tensor, gradient, nd, steps))

    def _fetch_again(self, op: Op) -> None:
        """What the executor has forgotten (ZeRO's stage 3), unless the operator has run again."""
        for index, tensor in enumerate(op.inputs * (op.name not in self.plan.again.block_of)):
            edge = self.plan.edges.get((op.name, index))
            if edge is not None and edge.zero_stage == 3:
                (nd,) = self.plan.ops[self.plan.graph.producers[tensor].name].outs
                what = f"input {index} of {op.name}, again"
                name = self.travel(what, tensor, tensor, nd, edge.forward)
                self.received[op.name, index] = name

    def _use(self, op: Op, index: int, gradient: str, nd: NdSbp) -> None:
        """The gradient of one use of a parameter, on its way to where it is added up."""
        tensor = op.inputs[index]
        edge = self.plan.edges.get((op.name, index))
        steps = edge.backward if edge else ()
        what = f"gradient of {tensor}"
        if edge is not None and edge.zero_stage > 1:
            gradient = self.travel(what, tensor, gradient, nd, steps)
            nd = self.placed_after(nd, steps)
        self.tape.act(f"accumulation of {tensor}", [gradient])
        if self.is_first:
            self.tape.kept.add(gradient)
            return
        if (op.name, index) in self._bucket_of:
            self._fill((op.name, index), gradient)
        elif self.plan.micro_batches == 1:
            self.tape.kept.add(gradient)
        if self.plan.micro_batches > 1:
            self.tape.keep("gradients", self.bytes_of(tensor, nd))

    def _leave(self) -> None:
        """The buckets that have waited for the operator whose backward pass is over."""
        for members in self._leaving.get(self._passes, ()):
            for key in (member.key for member in members if member.key in self._held):
                self._use(*self._held.pop(key))
            if not members[0].is_often and not self.is_first:
                self._send(members)
        self._passes += 1

    @cached_property
    def _leaving(self) -> Mapping[int, list[list[Exchange]]]:
        plan, every = self.plan, self._every if self.plan.waits else ()
        return departures(plan.graph, every, plan.buckets, plan.waits)

    @cached_property
    def _every(self) -> tuple[Exchange, ...]:
        return exchanges(self.plan.graph, self.plan.ops, self.plan.edges)

    @cached_property
    def _bucket_of(self) -> dict[Key, tuple[int, ...]]:
        """Use of a parameter -> its bucket, if that travels once an iteration."""
        buckets = self.plan.buckets
        every = self._every if buckets else ()
        return {every[n].key: b for b in buckets for n in b if not every[n].is_often}

    def _fill(self, key: Key, gradient: str) -> None:
        """Lay a gradient into its bucket, which travels when it is full, unless it waits."""
        self._filled[key] = gradient
        bucket = self._bucket_of[key]
        self._laid[bucket[0]] += 1
        if not self._leaving and self._laid[bucket[0]] == len(bucket):
            self._send([self._every[n] for n in bucket])

    def _send(self, members: Sequence[Exchange]) -> None:
        """A bucket that is full."""
        own, what = [self._filled[m.key] for m in members], f"gradient of {members[0].tensor}"
        what = f"bucket of {len(members)} gradients" if len(members) > 1 else what
        name, is_once = own[0], self.plan.micro_batches == 1
        if len(members) > 1 or not is_once:
            # sums over micro-batches are counted all the time: the bucket takes their place
            size = self.bytes_at(members, [m.given for m in members]) if is_once else 0.0
            name = self.new(what, [*own, *self._travelling], size, "gradients")
        for ways in zip(*(self._route(m.given, m.steps) for m in members), strict=True):
            found = self.bytes_together(members, own[0], ways)
            if found is not None:
                moved, (after, workspace) = f"{ways[0][0]} of {what}", found
                size = after + (0.0 if is_once else workspace)
                workspace = workspace if is_once else 0.0
                name = self.new(moved, [name], size, "gradients", workspace, "", "planned")
        if is_once:
            self.tape.kept.add(name)
        else:
            self._travelling = [name]

    def _update(self, op: Op) -> None:
        """The executor updates parameters after the step, when all of its gradients are there."""

    def _synchronise(self) -> None:
        """The executor's way of accumulated gradients, one after the other, to their parameters.

        Nothing else changes meanwhile, so of gradients that travel alike the first one tells all.
        """
        plan, graph = self.plan, self.plan.graph
        seen: set[tuple[int, NdSbp, tuple[Step, ...]]] = set()
        for op in reversed(graph.params):
            (tensor,) = op.outputs
            uses = graph.consumers[tensor] if tensor in graph.needs_grad else ()
            for user, index in uses:
                edge, nd = plan.edges.get((user.name, index)), plan.ops[user.name].grad_ins[index]
                if edge is None or nd is None or edge.zero_stage > 1:
                    continue
                if (user.name, index) in self._bucket_of:
                    continue
                alike = graph.tensors[tensor].spec.bytes, nd, edge.backward
                if alike not in seen:
                    seen.add(alike)
                    start = self.new(f"gradient of {tensor}", (), 0.0, "gradients")
                    self.travel(f"gradient of {tensor}", tensor, start, nd, edge.backward)
