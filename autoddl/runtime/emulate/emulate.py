"""Emulated compute: each operator is a wait as long as the compute model says, on real tensors.

A machine with few cores cannot compute for many devices at once, but it can wait for all of them.
Operators give zeros of the right local shape and dtype; redistributions, the operators' own
collectives and the order of everything stay real. Losses and gradients then mean nothing, and every
time measured so is one of *emulated compute*.

On the CPU OneFlow runs what it is asked for in one queue, computation and communication in turn. So
a collective starts when the one before has ended and the computation asked for since has taken its
time:

    start = max(now, end of the collective before + emulated seconds since then)

`Clock` keeps to this. It sleeps once before each collective instead of once an operator, which also
hides the time that Python takes meanwhile, and a sleep that ends late shortens the next, as does
what waking up together costs a group's collective (`emulate_overhead`, measured at its first one).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...cost.account import inner_of, operator_seconds
from ...cost.model import CostModel
from ...graph.graph import Graph
from ...sbp.layout import TensorSpec, local_shape
from ...sbp.placement import NdSbp
from ...sbp.signature import Attrs
from ..backend import Backend, Tensor
from ..comm.groups import Group, Groups
from ..execution.program import Node, Program
from ..kernel import ByInput, Context, Explicit, Kernel
from .overhead import overhead_s

EMULATED = "emulated compute"
MAXIMUM_FIRST = ("softmax", "log_softmax", "sparse_softmax_cross_entropy")


@dataclass
class Clock:
    """When the emulated device is free again, in seconds of `time.perf_counter`.

    late:           how much too late the last sleep has ended
    communicated_s: seconds in collectives since the step began, waiting for other ranks included,
        without what the emulation itself adds
    """

    backend: Backend
    free_at: float = 0.0
    late: float = 0.0
    communicated_s: float = 0.0
    _began: float = 0.0

    def start(self) -> None:
        """A step begins now."""
        self.free_at = max(self.free_at, time.perf_counter())
        self.communicated_s = 0.0

    def compute(self, seconds: float) -> None:
        """The device computes for so long after what it does already."""
        self.free_at += seconds

    def before_collective(self) -> None:
        """Wait until the computation so far has taken its time."""
        missing = self.free_at - time.perf_counter()
        self.late = 0.0
        if missing > 0:
            time.sleep(missing)
            self.late = time.perf_counter() - self.free_at
        self._began = time.perf_counter()

    def after_collective(self, overhead_s: float = 0.0) -> None:
        """The collective asked for last ends; computation goes on then, less what slept late.

        overhead_s: what the collective takes longer for being emulated around
        """
        self.backend.wait()
        now = time.perf_counter()
        overhead_s = min(overhead_s, now - self._began)
        self.communicated_s += now - self._began - overhead_s
        self.free_at = now - self.late - overhead_s


@dataclass(frozen=True)
class _Sums:
    """The collectives inside an operator, as its kernel runs them.

    Forward one for each of `count` statistics, of which the first may be a maximum; backward all
    sums in one.
    """

    group: Group
    statistic: Tensor
    stacked: Tensor | None
    count: int
    maximum_first: bool

    def forward(self) -> None:
        for number in range(self.count):
            if self.maximum_first and number == 0:
                self.group.all_max(self.statistic)
            else:
                self.group.all_reduce(self.statistic)

    def backward(self) -> None:
        if self.stacked is not None:
            self.group.all_reduce(self.stacked)


@dataclass
class Emulator:
    """Puts waits in the place of the kernels of programs that are priced by `model`."""

    model: CostModel
    groups: Groups
    clock: Clock = field(init=False)
    _zeros: dict[tuple[tuple[int, ...], str], Tensor] = field(default_factory=dict)
    _overhead_s: dict[tuple[int, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups.watch = self
        self.clock = Clock(self.groups.backend)
        self._heavy = set(self.groups.backend.kernels.by_input.values())

    def before_collective(self, group: Group) -> None:
        """All ranks of the group come here together, also for the first time."""
        if group.axes not in self._overhead_s:
            self.groups.watch = None
            self._overhead_s[group.axes] = overhead_s(group)
            self.groups.watch = self
        self.clock.before_collective()

    def after_collective(self, group: Group) -> None:
        self.clock.after_collective(self._overhead_s[group.axes])

    def replace(self, program: Program) -> None:
        """Emulate every operator of a program."""
        for node in program.nodes:
            if node.kernel is not None:
                node.kernel = self._kernel(program.graph, node)

    def finish(self) -> None:
        """Wait for the computation after the last collective."""
        self.clock.before_collective()

    def _kernel(self, graph: Graph, node: Node) -> Kernel:
        spec, planned = node.context.spec, node.planned
        forward_s, backward_s = operator_seconds(graph, self.model, node.op, planned)
        outputs = self._parts(spec.outputs, planned.outs)
        gradients = self._parts(spec.inputs, planned.grad_ins)
        sums = self._inner(graph, node)

        def vjp(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            del grads
            if sums is not None:
                sums.backward()
            self.clock.compute(backward_s)
            return gradients

        def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
            if sums is not None:
                sums.forward()
            if node.op.kind == "normalization" and attrs["training"] and ctx.state.training:
                # the moving statistics stay what they are, where the operator has them
                ctx.updates.update({i: inputs[i] for i in range(1, len(inputs) - 2)})
            self.clock.compute(forward_s)
            return Explicit([x for x in outputs if x is not None], vjp)

        if node.kernel in self._heavy:
            wanted = sum(edge.carries_gradient for edge in node.edges)

            def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
                del grads
                self.clock.compute(backward_s / wanted)
                found = gradients[index]
                assert found is not None
                return found

            def run_by_input(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
                del ctx, inputs, attrs
                self.clock.compute(forward_s)
                return ByInput([x for x in outputs if x is not None], gradient)

            return run_by_input
        return run

    def _inner(self, graph: Graph, node: Node) -> _Sums | None:
        """The operator's own collectives on this rank."""
        group, planned = node.context.inner, node.planned
        if group is None:
            return None
        inner = inner_of(graph, node.op)
        whole = node.context.spec.inputs[inner.tensor]
        mesh, rank = self.groups.mesh, self.groups.rank
        shape = local_shape(whole.shape, planned.ins[inner.tensor], mesh, rank)
        reduced = tuple(1 if dim in inner.dims else n for dim, n in enumerate(shape))
        return _Sums(
            group,
            self._zero(reduced, whole.dtype),
            self._zero((inner.backward, *reduced), whole.dtype) if inner.backward else None,
            inner.forward,
            node.op.kind in MAXIMUM_FIRST,
        )

    def _parts(
        self, specs: Sequence[TensorSpec], placements: Sequence[NdSbp | None]
    ) -> list[Tensor | None]:
        """Zeros of this rank's parts; None where nothing is placed."""
        mesh, rank = self.groups.mesh, self.groups.rank
        return [
            None if nd is None else self._zero(local_shape(spec.shape, nd, mesh, rank), spec.dtype)
            for spec, nd in zip(specs, placements, strict=True)
        ]

    def _zero(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """One tensor for all uses: nobody writes to an operator's result. Zero is a valid index."""
        key = shape, dtype
        if key not in self._zeros:
            self._zeros[key] = self.groups.backend.zeros(shape, dtype)
        return self._zeros[key]
