"""The step as OneFlow's nn.Graph compiles it, as a tape, and its peak memory.

An activation is freed after its last reader, operators overwrite inputs that nobody reads any
more, and a parameter is updated as soon as its gradient is there. A slice is a collective, and a
change to Partial goes through the host, into a buffer of its own. With micro-batches gradients are
added up in buffers of their own. After the last micro-batch each is reduced, if it is still
Partial, and its parameter updated; the mean is taken in the update
(`allow_fuse_model_update_ops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .....cost.liveness import STATE_BYTES, StepTape
from .....cost.memory_rules import OperatorMemory
from .....cost.step_tensors import PlannedStep, Way
from .....cost.tape import Peak, Tape, Transfer
from .....graph.graph import Op
from .....graph.placed import PlannedEdge, PlannedOp
from .....sbp.collectives import Step
from .....sbp.placement import NdSbp
from .....sbp.signature import find_rule
from . import backward
from .chains import ChainRule, compiled_peak, holds_anything
from .collectives import (
    MOST_AXES,
    compiled_route,
    goes_through_host,
    merged_axes,
    num_changes,
)


def compiled_axes(plan: PlannedStep) -> tuple[tuple[int, ...], ...]:
    """The atomic axes of each axis of the mesh that OneFlow's compiler sees."""
    return plan.alone.once(_axes)


def _axes(plan: PlannedStep) -> tuple[tuple[int, ...], ...]:
    return merged_axes(plan.ops.values(), plan.mesh.num_axes)


def compiled_peaks(plan: PlannedStep) -> dict[ChainRule, Peak]:
    """The peak of the compiled step, for each way to chain that may be the best.

    One micro-batch after the other: nn.Graph has no other turns, and no buckets.
    """
    return dict(peak_by(plan, rule) for rule in chain_rules(plan))


def chain_rules(plan: PlannedStep) -> tuple[ChainRule, ...]:
    """The ways to chain that may be the best."""
    if plan.micro_batches == 1:
        return ("tasks",)
    return ("operators",) if len(compiled_axes(plan)) == 1 else ("operators", "tasks")


def peak_by(plan: PlannedStep, rule: ChainRule) -> tuple[ChainRule, Peak]:
    """The peak of the compiled step in one of these ways, and what that is then."""
    return plan.alone.once(_peak_by, rule)


def _peak_by(plan: PlannedStep, rule: ChainRule) -> tuple[ChainRule, Peak]:
    step = CompiledTape(plan, chains=rule)
    tape, after = step.build(), step.late()
    rule = "apart" if rule == "operators" and not holds_anything(after) else rule
    return rule, compiled_peak(tape, after, plan.micro_batches, rule)


@dataclass
class CompiledTape(StepTape):
    """Builds the tape of the step `plan`; `chains`: how the compiler chains operators."""

    way_of = staticmethod(compiled_route)
    _adds_in_place = True
    operators: OperatorMemory = field(default=backward, kw_only=True)
    chains: ChainRule = field(kw_only=True)
    # parameter -> its gradient's placement, and the steps still to come after the last part
    owed: dict[str, tuple[NdSbp, tuple[Step, ...]]] = field(default_factory=dict)
    accumulated: list[str] = field(default_factory=list)  # parameters, as their gradients come

    def late(self) -> Tape:
        """What follows the last micro-batch, once the tape has been built."""
        main, self.tape = self.tape, Tape()
        for tensor in self.accumulated:
            nd, steps = self.owed[tensor]
            whole = self.travel(f"gradient of {tensor}", tensor, f"always:{tensor}", nd, steps)
            self.tape.act(f"update of {tensor}", [whole])
        after, self.tape = self.tape, main
        return after

    # ---- redistributions

    def moved(self, what: str, tensor: str, name: str, way: Way, transfer: Transfer) -> str:
        kind, start, nd = way
        travel = self.travel_of(tensor, name, way)
        after, workspace = travel.after, self.moving_bytes(travel)
        if self._leaves_chain(start, nd):
            # into a buffer of its own; what it leaves behind is not reused
            through_host = goes_through_host(start, nd)
            self.tape.keep("redistribution", after + (0 if through_host else workspace))
            self.tape.kept.add(name)
            return self.name(f"always:{what}")
        how: Transfer = "implied" if kind == "slice" else transfer
        return self.new(what, [name], after, "redistribution", workspace, "", how)

    @cached_property
    def _num_axes(self) -> int:
        return len(compiled_axes(self.plan))

    def _leaves_chain(self, source: NdSbp, target: NdSbp) -> bool:
        """True if the compiler has no collective on the mesh of the step for the change."""
        if goes_through_host(source, target):
            return True
        # more than two axes are not compiled at all, and taken as if each had its collectives
        reduced = self._num_axes == MOST_AXES and num_changes(source, target) == 1
        return reduced and self.chains == "operators"

    # ---- forward

    def _overwrites(self, op: Op) -> bool:
        rule = find_rule(op.kind)
        return rule is not None and rule.in_place

    def _receive_parameter(self, op: Op, edge: PlannedEdge, again: bool) -> str:
        """It travels where it is read for the first time."""
        if again:
            return self.received[op.name, edge.index]
        tensor = op.inputs[edge.index]
        what = f"input {edge.index} of {op.name}"
        return self.travel(what, tensor, self.value(tensor), self.given(tensor), edge.forward)

    def _is_view(self, op: Op, names: Sequence[str]) -> bool:
        # what comes from outside the compiled order is copied when it is first looked at
        rule = find_rule(op.kind)
        shares = rule is not None and rule.view in ("same", "reshape")
        return shares and not self.tape.root(names[0]).startswith("always:")

    def _note_strides(self, op: Op, names: Sequence[str]) -> None:
        """The compiler knows no strides."""

    def _source(self, op: Op, planned: PlannedOp) -> None:
        super()._source(op, planned)
        if op.kind == "input" and self.plan.micro_batches > 1:
            self.tape.keep("inputs", self.bytes_of(op.outputs[0], planned.outs[0]))

    def _keep_master_gradient(self, slot: float) -> None:
        """The update reads the accumulated one."""

    # ---- backward

    def _fetch_again(self, op: Op) -> None:
        """What was gathered for the forward pass is still there."""

    def _use(self, op: Op, index: int, gradient: str, nd: NdSbp) -> None:
        """The gradient of one use of a parameter, on its way to the update or the accumulator."""
        tensor = op.inputs[index]
        edge = self.plan.edges.get((op.name, index))
        steps = edge.backward if edge else ()
        what = f"gradient of {tensor}"
        if self.plan.micro_batches == 1 or (edge and edge.forward):
            # what waits to be added to another use's gradient is reduced just before
            waits = len(self.plan.graph.consumers[tensor]) > 1 or not (edge and edge.forward)
            implied: Transfer = "implied" if waits else "planned"
            gradient = self.travel(what, tensor, gradient, nd, steps, implied)
            nd, steps = self.placed_after(nd, steps), ()
        if tensor in self.owed:
            self._arrive(tensor, gradient, self.owed[tensor][0])
        else:
            self.owed[tensor] = nd, steps
            self.arrived[tensor] = gradient

    def _update(self, op: Op) -> None:
        """Update a parameter at once, or accumulate its gradient and update after the last part.

        The accumulator is there all the time.
        """
        (tensor,) = op.outputs
        if tensor not in self.owed:
            return
        added: Transfer = "added" if self.plan.micro_batches > 1 else ""
        self.tape.act(f"update of {tensor}", [self.arrived[tensor]], transfer=added)
        if self.plan.micro_batches == 1:
            return
        if self.chains == "tasks":
            self.tape.kept.add(self.arrived[tensor])  # the accumulator is in no chain of tasks
        # as the optimizer takes it: nn.Graph adds up gradients of its float32 variables
        size = self.bytes_of(tensor, self.owed[tensor][0])
        item_bytes = self.plan.graph.tensors[tensor].spec.item_bytes
        self.tape.keep("gradients", size / item_bytes * max(STATE_BYTES, item_bytes))
        self.accumulated.append(tensor)

    def _synchronise(self) -> None:
        """Gradients travel in `late`."""
