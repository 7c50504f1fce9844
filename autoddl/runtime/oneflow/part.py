"""One rank's part of a pipeline's model: its program, its state, and its open micro-batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import oneflow as flow

from ...graph.rows import Rows
from ...plans import Plan
from .arrival import Arrival
from .communicating import communicating_passes
from .executor import Values
from .feed import Feed
from .groups import Groups
from .kernels.registry import OpaqueFn, RunState
from .measure.emulate import Emulator
from .program import compile_program
from .stage_executor import StageExecutor
from .state import ModelState
from .transfers import Resharding

_BLINK_S = 5e-4


class Part:
    """`start`: the values of parameters and buffers. by_input: weight gradients may wait.

    rows:                of the whole model's graph
    meets:               the kinds of passes in which the stage's devices communicate
    inputs, sent:        of each open micro-batch, tensors that came and that go on
    returned, gradients: the gradients of what was sent, and of what came
    """

    def __init__(
        self,
        plan: Plan,
        micro_batches: int,
        model: Any,
        start: Mapping[str, flow.Tensor],
        groups: Groups,
        run_state: RunState,
        opaque: Mapping[str, OpaqueFn],
        *,
        by_input: bool = False,
        debug: bool = False,
        emulator: Emulator | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.plan = plan
        self.state = ModelState(groups, model)
        self.parameters: dict[str, Any] = {}
        for op in plan.graph.ops:
            if op.kind == "param":
                name, (nd,) = op.attrs["name"], plan.ops[op.name].outs
                self.parameters[name] = self.state.add_parameter(name, start[name], nd)
            elif op.kind == "buffer":
                name, (nd,) = op.attrs["name"], plan.ops[op.name].outs
                self.state.add_buffer(name, start[name], nd)
        self.feed = Feed(plan.graph, plan.ops, micro_batches, groups)
        program = compile_program(
            plan.graph, plan.ops, plan.edges, groups, run_state, opaque, blocks=plan.recomputed,
            by_input=by_input, scales=None if rows is None else rows.scales(micro_batches),
        )  # fmt: skip
        self.meets = communicating_passes(plan)
        self._emulator = emulator
        if emulator:
            emulator.replace(program)
        rows = None if emulator else rows
        self.executor = StageExecutor(program, self.state, run_state, groups, debug, rows)
        self.inputs: dict[int, Values] = {}
        self.sent: dict[int, Values] = {}
        self.returned: dict[int, Values] = {}
        self.gradients: dict[int, Values] = {}
        self._coming: dict[tuple[str, int], list[Arrival]] = {}

    @property
    def trained(self) -> list[Any]:
        return [p for p in self.parameters.values() if p.requires_grad]

    def take(self, batch: Sequence[flow.Tensor]) -> None:
        """Start an iteration on a global batch."""
        self.inputs = dict(enumerate(self.feed.take(batch)))
        self.returned = {m: {} for m in self.inputs}
        self.sent, self.gradients = {}, {}

    def give_back(self, number: int, tensor: str, gradient: flow.Tensor) -> None:
        """One reader's gradient of a tensor that was sent in micro-batch `number`."""
        known = self.returned[number].get(tensor)
        self.returned[number][tensor] = gradient if known is None else known + gradient

    # ---- emulated compute

    def receive(self, kind: str, number: int, run: Resharding) -> flow.Tensor:
        """What the pass `kind` of a micro-batch needs, on its way."""
        if self._emulator is None:
            return run.receive()
        return run.receive(self._coming.setdefault((kind, number), []))

    def wait_for(self, kind: str, number: int) -> None:
        """An emulated pass begins when what it needs is there; a real one waits by itself."""
        if self._emulator is None:
            return
        coming = self._coming.pop((kind, number), [])
        if all(arrival.is_there for arrival in coming):
            return  # and makes up for an earlier sleep that ended late
        for arrival in coming:
            while not arrival.is_there:
                time.sleep(_BLINK_S)
        self._emulator.clock.free_at = time.perf_counter()

    def wait_for_transfers(self) -> None:
        """All transfers so far have ended; computation goes on then."""
        flow._oneflow_internal.eager.Sync()
        if self._emulator is not None:
            clock = self._emulator.clock
            clock.free_at = max(clock.free_at, time.perf_counter())

    def compute_ends(self) -> None:
        """Wait until an emulated pass has taken its time."""
        if self._emulator is not None:
            self._emulator.clock.before_collective()
