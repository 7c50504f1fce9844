"""Emulated compute: each operator is a wait as long as the compute model says, on real tensors.

A machine with few cores cannot compute for many devices at once, but it can wait for all of them.
Operators give zeros of the right local shape and dtype; redistributions, the operators' own
collectives and the order of everything stay real. Where a machine's hosts are of several kinds, or
have unequal parts, each waits for as long as its own devices take. Losses and gradients then mean
nothing, and every time measured so is one of *emulated compute*.

A device computes beside its communication, and an operator waits for what it reads alone. So a
collective of a step gives zeros at once and runs when its turn comes (`clock`); each edge of the
program notes the one that its tensor, or gradient, comes by, and the kernel that takes it waits for
that one. Nothing waits for gradients that travel in the plan's buckets before the step ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...cost.account import inner_of, operator_seconds
from ...cost.model import CostModel
from ...graph.graph import Graph
from ...sbp.layout import TensorSpec, local_shape
from ...sbp.placement import NdSbp
from ...sbp.signature import Attrs
from ..backend import Tensor
from ..comm.groups import Call, Group, Groups
from ..comm.redistribute import LocalFn
from ..execution.program import Edge, Node, Program
from ..kernel import ByInput, Context, Explicit, Kernel, RunState
from .clock import Clock, Sent
from .overhead import Overhead, run_alone

EMULATED = "emulated compute"
MAXIMUM_FIRST = ("softmax", "log_softmax", "sparse_softmax_cross_entropy")


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

    def forward(self) -> bool:
        """Whether there are any."""
        for number in range(self.count):
            if self.maximum_first and number == 0:
                self.group.all_max(self.statistic)
            else:
                self.group.all_reduce(self.statistic)
        return self.count > 0

    def backward(self) -> bool:
        if self.stacked is not None:
            self.group.all_reduce(self.stacked)
        return self.stacked is not None


@dataclass
class Emulator:
    """Puts waits in the place of the kernels of programs that are priced by `model`.

    transfers: there are others, between stages, beside the collectives
    """

    model: CostModel
    groups: Groups
    run_state: RunState
    transfers: bool
    clock: Clock = field(default_factory=Clock)
    _zeros: dict[tuple[tuple[int, ...], str], Tensor] = field(default_factory=dict)
    _overheads: dict[tuple[int, ...], Overhead] = field(default_factory=dict)
    # what brings a tensor to an operator, or gradients to its output, in a micro-batch
    _coming: defaultdict[Hashable, list[Sent]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.groups.around = self._around
        self._heavy = set(self.groups.backend.kernels.by_input.values())

    def _around(self, call: Call) -> list[Tensor]:
        """A collective, which takes its turn on the clock; outside of a step it runs."""
        if not self.clock.is_running:
            return call.run()
        group = call.group
        if group.axes not in self._overheads:
            self.clock.drain()  # all ranks of the group come here after the same collectives
            self._overheads[group.axes] = Overhead.of(group, self.transfers)
        run = partial(run_alone, self.groups.backend, call.run, self.transfers)
        self.clock.send(run, self._overheads[group.axes])
        return [self._zero((size,), call.dtype) for size in call.sizes]

    def replace(self, program: Program, overlaps: bool) -> None:
        """Emulate every operator of a program.

        overlaps: gradients of parameters travel beside the backward pass
        """
        for node in program.nodes:
            for edge in node.edges:
                self._follow(edge, overlaps)
            if node.kernel is not None:
                node.kernel = self._kernel(program.graph, node)

    def finish(self) -> None:
        """Wait for all computation and communication of the step."""
        self.clock.finish()
        self._coming.clear()

    def _follow(self, edge: Edge, overlaps: bool) -> None:
        """Note which collectives bring the edge's tensors.

        A parameter that stays for the step is there before its first reader's turn comes.
        """
        if edge.source.kind == "param" and edge.zero_stage < 3:
            edge.forward = self._followed(edge.forward, None)
        else:
            edge.forward = self._followed(edge.forward, edge.key)
        if edge.source.kind != "param":
            edge.backward = self._followed(edge.backward, edge.tensor)
        elif edge.zero_stage > 1 and not overlaps:
            edge.backward = self._followed(edge.backward, None)

    def _followed(self, path: LocalFn, name: Hashable | None) -> LocalFn:
        """`path`, whose collective is noted under `name`, or waited for at once."""

        def run(x: Tensor) -> Tensor:
            before = self.clock.last
            moved = path(x)
            sent = self.clock.last
            if sent is not None and sent is not before:
                if name is None:
                    self.clock.wait_for(sent)
                else:
                    self._coming[name, self.run_state.micro_batch].append(sent)
            return moved

        return run

    def _wait_for(self, name: Hashable) -> None:
        """The operator that runs now needs what is noted under `name`."""
        for sent in self._coming.pop((name, self.run_state.micro_batch), ()):
            self.clock.wait_for(sent)

    def _inner_ends(self) -> None:
        if self.clock.last is not None:  # it is in an evaluation
            self.clock.wait_for(self.clock.last)

    def _kernel(self, graph: Graph, node: Node) -> Kernel:
        spec, planned = node.context.spec, node.planned
        host = self.groups.rank // self.groups.mesh.gpus_per_node
        kind = self.model.cluster.kind_of(host)
        forward_s, backward_s = operator_seconds(graph, self.model, node.op, planned, kind)
        outputs = self._parts(spec.outputs, planned.outs)
        gradients = self._parts(spec.inputs, planned.grad_ins)
        sums = self._inner(graph, node)

        def arrive() -> None:
            for edge in node.edges:
                self._wait_for(edge.key)

        def gradients_arrive() -> None:
            arrive()  # parameters that are fetched again
            for name in node.op.outputs:
                self._wait_for(name)

        def vjp(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            del grads
            gradients_arrive()
            if sums is not None and sums.backward():
                self._inner_ends()
            self.clock.compute(backward_s)
            return gradients

        def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
            arrive()
            if sums is not None and sums.forward():
                self._inner_ends()
            if node.op.kind == "normalization" and attrs["training"] and ctx.state.training:
                # the moving statistics stay what they are, where the operator has them
                ctx.updates.update({i: inputs[i] for i in range(1, len(inputs) - 2)})
            self.clock.compute(forward_s)
            return Explicit([x for x in outputs if x is not None], vjp)

        if node.kernel in self._heavy:
            wanted = sum(edge.carries_gradient for edge in node.edges)

            def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
                del grads
                gradients_arrive()
                self.clock.compute(backward_s / wanted)
                found = gradients[index]
                assert found is not None
                return found

            def run_by_input(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
                del ctx, inputs, attrs
                arrive()
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
