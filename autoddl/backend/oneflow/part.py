"""One rank's part of a pipeline's model: its program, its state, and its open micro-batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import oneflow as flow

from ...plans import Plan
from .emulate import Emulator
from .executor import Values
from .feed import Feed
from .groups import Groups
from .kernels.registry import OpaqueFn, RunState
from .program import compile_program
from .stage_executor import StageExecutor
from .state import ModelState

_BLINK_S = 5e-4


class Part:
    """`start`: the values of parameters and buffers. by_input: weight gradients may wait.

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
            by_input=by_input,
        )  # fmt: skip
        self._emulator = emulator
        if emulator:
            emulator.replace(program)
        self.executor = StageExecutor(program, self.state, run_state, groups, debug)
        self.inputs: dict[int, Values] = {}
        self.sent: dict[int, Values] = {}
        self.returned: dict[int, Values] = {}
        self.gradients: dict[int, Values] = {}
        self._marks: dict[tuple[str, int], list[Mark]] = {}

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

    def coming(self, kind: str, number: int, value: flow.Tensor) -> flow.Tensor:
        """`value`, on its way, which the pass `kind` of a micro-batch needs."""
        if self._emulator is not None:
            self._marks.setdefault((kind, number), []).append(Mark(value))
        return value

    def wait_for(self, kind: str, number: int) -> None:
        """An emulated pass begins when what it needs is there; a real one waits by itself."""
        if self._emulator is None:
            return
        marks = self._marks.pop((kind, number), [])
        if all(mark.is_there for mark in marks):
            return  # and makes up for an earlier sleep that ended late
        for mark in marks:
            while not mark.is_there:
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


class Mark:
    """Sees a tensor arrive without asking OneFlow, whose answer would queue behind later transfers.

    OneFlow writes into memory of NumPy's as soon as it has the tensor.
    """

    def __init__(self, value: flow.Tensor) -> None:
        self._flag = np.zeros(1, dtype=np.float32)
        flag = flow.from_numpy(self._flag)
        with flow.no_grad():
            flag.copy_(value.reshape(-1).narrow(0, 0, 1).to(flow.float32) * 0 + 1)
        self._keeps = flag

    @property
    def is_there(self) -> bool:
        return bool(self._flag[0])
