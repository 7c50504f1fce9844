"""The tensors of a planned step: their sizes, their strides, and how they travel on its tape.

A tensor of the graph is on the tape under its own name, under a new one if it is made again, and
under one more for each placement that it travels to. Views are told by their strides: the place of
a view's element i is  offset + sum over dims d of  i[d] strides[d].  A reshape of a view is one as
well if each of its new dims runs through old dims that follow one another in memory. Shapes are
global: a split of one dim leaves the order of the others as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from ..graph.graph import Graph, Once, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step
from ..sbp.layout import TensorSpec, num_shards
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from ..sbp.signature import OpSpec, View, find_rule
from .collectives import Device, Travel
from .exchange import Buckets, Exchange, Waits
from .recompute import Recomputation
from .tape import Tape, Transfer

Key = tuple[str, int]
Way = tuple[str, NdSbp, NdSbp]  # of `Step.way`, placement before, placement after
Strides = tuple[int, ...]


@dataclass(frozen=True)
class PlannedStep(Once):
    """graph: of one micro-batch, with placements `ops` and, by reader and input, steps `edges`.

    device: kind of the devices that it runs on
    again: which blocks are run again before their backward pass
    buckets: in which gradients travel beside the backward pass (`exchange`)
    ema: an average of the parameters is kept beside them
    turns: of several micro-batches in flight on one mesh, see `plans.schedule.orders`
    waits: how many operators' backward passes each bucket waits for, once it is full; () for none
    """

    graph: Graph
    mesh: Mesh
    device: Device
    micro_batches: int
    optimizer: str
    ops: Mapping[str, PlannedOp]
    edges: Mapping[Key, PlannedEdge]
    again: Recomputation
    buckets: Buckets = ()
    ema: bool = False
    turns: Sequence[tuple[int, int]] = ()
    waits: Waits = ()

    @cached_property
    def alone(self) -> PlannedStep:
        """One micro-batch after the other, and each gradient by itself, as compilers have it."""
        again = replace(self.again, in_flight=1)
        is_alone = again == self.again and not self.buckets
        return self if is_alone else replace(self, turns=(), buckets=(), waits=(), again=again)

    def in_buckets(self, buckets: Buckets, waits: Waits) -> PlannedStep:
        """The step whose gradients travel so; what is known of it `alone` stays known."""
        found = replace(self, buckets=buckets, waits=waits)
        found.__dict__["alone"] = self.alone
        return found


def contiguous(shape: Sequence[int]) -> Strides:
    """The strides of a tensor in row-major order."""
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


@lru_cache(maxsize=10_000)
def is_contiguous(shape: Strides, strides: Strides) -> bool:
    """True if the elements follow one another; dims of size 1 may have any stride."""
    rows = zip(shape, strides, contiguous(shape), strict=True)
    return all(n == 1 or stride == row for n, stride, row in rows)


def reshaped(shape: Sequence[int], strides: Strides, target: Sequence[int]) -> Strides | None:
    """The strides of a view [shape] in the shape `target`; None if that takes a copy."""
    if 0 in shape:
        return contiguous(target)
    # runs of old dims that follow one another: (elements, stride of the last one)
    runs: list[tuple[int, int]] = []
    for n, stride in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == n * stride:
            runs[-1] = runs[-1][0] * n, stride
        else:
            runs.append((n, stride))
    found: list[int] = []
    left = 1  # elements of the current run that new dims still have to cover
    stride = 1
    for n in target:
        if n == 1:
            found.append(1)
            continue
        if left == 1:
            left, stride = runs.pop(0)
            stride *= left
        if left % n:
            return None
        left //= n
        stride //= n
        found.append(stride)
    return tuple(found)


def view_of(op: OpSpec) -> View:
    """How the output of `op` shares the input's memory."""
    rule = find_rule(op.kind)
    return rule.view if rule else ""


def view_strides(op: OpSpec, strides: Strides) -> Strides | None:
    """Strides of the output of `op`, whose first input has `strides`; None if it is no view."""
    shape, target, view = op.inputs[0].shape, op.outputs[0].shape, view_of(op)
    if view == "reshape":
        return reshaped(shape, strides, target)
    if view == "transpose":
        return tuple(strides[dim] for dim in op.attrs["perm"])
    if view == "expand":
        new = len(target) - len(shape)
        old = zip(shape, strides, target[new:], strict=True)
        return (0,) * new + tuple(stride if n == m else 0 for n, stride, m in old)
    return strides if view else None


def gradient_strides(op: OpSpec, strides: Strides) -> Strides | None:
    """Strides of the input's gradient, as a view of the output's; None if it is none."""
    shape, target, view = op.inputs[0].shape, op.outputs[0].shape, view_of(op)
    if view == "reshape":
        return reshaped(target, strides, shape)
    if view == "transpose":
        perm = [dim % len(shape) for dim in op.attrs["perm"]]
        return tuple(strides[perm.index(dim)] for dim in range(len(shape)))
    return strides if view == "same" else None


@dataclass
class StepTensors(ABC):
    """Names, sizes and strides of the tensors of the step `plan`.

    received: reader and input -> name
    """

    plan: PlannedStep
    tape: Tape = field(default_factory=Tape)
    received: dict[Key, str] = field(default_factory=dict)
    arrived: dict[str, str] = field(default_factory=dict)  # tensor -> name of its gradient
    newest: dict[str, str] = field(default_factory=dict)  # tensor -> its name, made again
    strides: dict[str, Strides] = field(default_factory=dict)  # of views
    extras: set[str] = field(default_factory=set)  # names of what operators keep beside outputs
    counter: int = 0
    _parts: dict[int, tuple[NdSbp, float]] = field(default_factory=dict)  # by the object's id
    _whole: dict[str, int] = field(default_factory=dict)
    _routes: dict[tuple[NdSbp, tuple[Step, ...]], tuple[Way, ...]] = field(default_factory=dict)
    # tensor, way, bytes copied before -> bytes after it and while it travels; None: a view
    _moves: dict[tuple[TensorSpec, Way, float], tuple[float, float] | None] = field(
        default_factory=dict
    )

    def name(self, what: str) -> str:
        """A new name."""
        self.counter += 1
        return f"{what}#{self.counter}"

    def new(
        self,
        what: str,
        reads: Sequence[str],
        size: float,
        cause: str,
        workspace: float = 0,
        over: str = "",
        transfer: Transfer = "",
    ) -> str:
        """Append an action that makes one tensor; gives the tensor's name."""
        name = self.name(what)
        places = {name: over} if over else None
        self.tape.act(what, reads, [(name, size, cause)], workspace, places, transfer)
        return name

    def value(self, tensor: str) -> str:
        """The name under which a tensor of the graph was made last."""
        return self.newest.get(tensor, tensor)

    def bytes_of(self, tensor: str, nd: NdSbp) -> float:
        """Local bytes of a tensor of the graph that is placed as `nd`."""
        whole = self._whole.get(tensor)
        if whole is None:
            whole = self._whole[tensor] = self.plan.graph.tensors[tensor].spec.bytes
        known = self._parts.get(id(nd))
        if known is None:
            known = self._parts[id(nd)] = nd, num_shards(nd, self.plan.mesh)
        return whole / known[1]

    def given(self, tensor: str) -> NdSbp:
        """How its producer places a tensor."""
        producer = self.plan.graph.producers[tensor]
        return self.plan.ops[producer.name].outs[producer.outputs.index(tensor)]

    @property
    def ahead_bytes(self) -> float:
        """Bytes of the largest parameter that is gathered while another one's reader runs.

        That is where buckets travel beside the backward pass, and passes do not take turns.
        """
        plan = self.plan
        if not plan.buckets or plan.turns:
            return 0.0
        readers = {op.name: op for op in plan.graph.ops}
        gathered = [
            self.bytes_of(readers[op].inputs[index], plan.ops[op].ins[index])
            for (op, index), edge in plan.edges.items()
            if edge.zero_stage == 3
        ]
        return max(gathered) if len(gathered) > 1 else 0.0

    def strides_of(self, name: str, tensor: str) -> Strides:
        """Strides of `tensor`, which is `name`, as if it were not split."""
        return self.strides.get(name) or contiguous(self.plan.graph.tensors[tensor].spec.shape)

    def copied_bytes(self, name: str, tensor: str, nd: NdSbp) -> float:
        """Local bytes of a contiguous copy of `tensor`, which is `name`; 0 if it needs none."""
        strides = self.strides.get(name)
        if strides is None:
            return 0.0
        shape = self.plan.graph.tensors[tensor].spec.shape
        return 0.0 if is_contiguous(shape, strides) else self.bytes_of(tensor, nd)

    def extra_of(self, op: Op) -> str:
        """What stands for that which an operator keeps beside its outputs."""
        return f"{op.name}:kept"

    # ---- redistributions

    def travel(
        self,
        what: str,
        tensor: str,
        name: str,
        source: NdSbp,
        steps: Sequence[Step],
        transfer: Transfer = "planned",
    ) -> str:
        """The name of `tensor`, which is `name` and placed as `source`, after `steps`."""
        if not steps:
            return name
        for way in self._route(source, steps):
            name = self.moved(f"{way[0]} of {what}", tensor, name, way, transfer)
        return name

    def travel_of(self, tensor: str, name: str, way: Way) -> Travel:
        """One way of `tensor`, which is `name`."""
        how, source, target = way
        before, after = self.bytes_of(tensor, source), self.bytes_of(tensor, target)
        shape = self.plan.graph.tensors[tensor].spec.shape
        copied = self.copied_bytes(name, tensor, source) if name in self.strides else 0.0
        return Travel(
            how, source, target, before, after, shape, self.plan.mesh, self.plan.device, copied
        )

    def moved(self, what: str, tensor: str, name: str, way: Way, transfer: Transfer) -> str:
        """The name of `tensor`, which is `name`, after one way."""
        found = self.bytes_moved(tensor, name, way)
        if found is None:
            return name
        return self.new(what, [name], found[0], "redistribution", found[1], "", transfer)

    def bytes_moved(self, tensor: str, name: str, way: Way) -> tuple[float, float] | None:
        """Bytes of `tensor`, which is `name`, after one way and while it travels; None: a view."""
        copied = self.copied_bytes(name, tensor, way[1]) if name in self.strides else 0.0
        # of 54,884 in planning GPT-3 175B in the memory of 128x8 devices 258 differ
        key = self.plan.graph.tensors[tensor].spec, way, copied
        if key not in self._moves:
            travel = self.travel_of(tensor, name, way)
            self._moves[key] = None if travel.is_view else (travel.after, self.moving_bytes(travel))
        return self._moves[key]

    def bytes_at(self, members: Sequence[Exchange], placements: Iterable[NdSbp]) -> float:
        """Bytes of a bucket whose gradients are so placed."""
        pairs = zip(members, placements, strict=True)
        return sum(self.bytes_of(member.tensor, nd) for member, nd in pairs)

    def bytes_together(
        self, members: Sequence[Exchange], name: str, ways: Sequence[Way]
    ) -> tuple[float, float] | None:
        """As `bytes_moved`, of a bucket, the first of whose gradients is `name`."""
        if len(members) == 1:
            return self.bytes_moved(members[0].tensor, name, ways[0])
        travel = self.travel_of(members[0].tensor, name, ways[0])
        _, before, after = zip(*ways, strict=True)
        travel = travel.flat(self.bytes_at(members, before), self.bytes_at(members, after))
        return None if travel.is_view else (travel.after, self.moving_bytes(travel))

    @abstractmethod
    def moving_bytes(self, travel: Travel) -> float:
        """Bytes that are there only while a tensor travels."""

    def _route(self, source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
        key = source, tuple(steps)
        if key not in self._routes:
            self._routes[key] = self.way_of(*key)
        return self._routes[key]

    @staticmethod
    def way_of(source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
        """The ways that a tensor goes to make the steps: here one for each step."""
        route: list[Way] = []
        for step in steps:
            after = step.apply(source)
            route.append((step.way, source, after))
            source = after
        return tuple(route)

    def placed_after(self, nd: NdSbp, steps: Sequence[Step]) -> NdSbp:
        """The placement `nd` after `steps`."""
        return self._route(nd, steps)[-1][2] if steps else nd


@dataclass
class OpPullback:
    """`given`: input index -> the name of the gradient that has been worked out."""

    step: StepTensors
    op: Op
    given: dict[int, str] = field(default_factory=dict)
    kind: str = field(init=False)
    planned: PlannedOp = field(init=False)

    def __post_init__(self) -> None:
        self.kind, self.planned = self.op.kind, self.step.plan.ops[self.op.name]

    @property
    def num_inputs(self) -> int:
        return len(self.op.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.op.outputs)

    def x(self, index: int) -> str:
        return self.step.received[self.op.name, index]

    def y(self, index: int = 0) -> str:
        return self.step.value(self.op.outputs[index])

    def dy(self, index: int = 0) -> str:
        return self.step.arrived.get(self.op.outputs[index], "")

    def extra(self) -> str:
        return self.step.value(self.step.extra_of(self.op))

    def wants(self, index: int) -> bool:
        tensor = self.op.inputs[index]
        needs_grad = tensor in self.step.plan.graph.needs_grad
        return needs_grad and self.planned.grad_ins[index] is not None

    def bytes_x(self, index: int) -> float:
        return self.step.bytes_of(self.op.inputs[index], self.planned.ins[index])

    def bytes_y(self, index: int = 0) -> float:
        return self.step.bytes_of(self.op.outputs[index], self.planned.outs[index])

    def bytes_whole(self, index: int) -> float:
        return float(self.step.plan.graph.tensors[self.op.inputs[index]].spec.bytes)

    def whole_x(self, index: int) -> str:
        return self._gathered(self.x(index), self.op.inputs[index], self.planned.ins[index])

    def whole_dy(self) -> str:
        nd = self.planned.grad_outs[0]
        assert nd is not None, f"{self.op.name} takes no gradient"
        return self._gathered(self.dy(), self.op.outputs[0], nd)

    def _gathered(self, name: str, tensor: str, nd: NdSbp) -> str:
        whole = NdSbp.broadcast(len(nd))
        if nd == whole:
            return name
        way = "all_gather", nd, whole
        return self.step.moved(f"gathering of {tensor}", tensor, name, way, "implied")

    def temporary(
        self, reads: Sequence[str], size: float, workspace: float = 0, over: str = ""
    ) -> str:
        return self.step.new(
            f"backward of {self.op.name}", reads, size, "gradients", workspace, over
        )

    def give(self, index: int, reads: Sequence[str], workspace: float = 0, over: str = "") -> None:
        nd = self.planned.grad_ins[index]
        if not self.wants(index) or nd is None:
            return
        size = self.step.bytes_of(self.op.inputs[index], nd)
        self.given[index] = self.temporary(reads, size, workspace, over)

    def give_view(self, index: int, source: str) -> None:
        if not self.wants(index):
            return
        name = self.step.name(f"gradient of input {index} of {self.op.name}")
        self.step.tape.view(name, source)
        self.given[index] = name

    def pull_view(self) -> None:
        """The gradient of a view is a view of its own gradient, unless that takes a copy."""
        if not self.wants(0):
            return
        strides = gradient_strides(self.spec, self.strides_dy())
        if strides is None:
            self.give(0, [self.dy()], workspace=self.bytes_x(0))
        else:
            self.give_view(0, self.dy())
            self.step.strides[self.given[0]] = strides

    @property
    def spec(self) -> OpSpec:
        return self.step.plan.graph.spec(self.op)

    def new_gradient(self, index: int) -> tuple[str, float, str]:
        """The gradient of a wanted input, to be made: name, bytes and cause."""
        nd = self.planned.grad_ins[index]
        assert nd is not None
        name = self.step.name(f"gradient of input {index} of {self.op.name}")
        self.given[index] = name
        return name, self.step.bytes_of(self.op.inputs[index], nd), "gradients"

    def strides_dy(self) -> Strides:
        return self.step.strides_of(self.dy(), self.op.outputs[0])

    def copied_x(self, index: int) -> float:
        """Bytes of a contiguous copy of an input; 0 if it is contiguous itself."""
        return self.step.copied_bytes(self.x(index), self.op.inputs[index], self.planned.ins[index])

    def copied_dy(self, index: int) -> float:
        """Bytes of a contiguous copy of an output's gradient; 0 if it is contiguous itself."""
        nd = self.planned.grad_outs[index]
        if nd is None:
            return 0.0
        return self.step.copied_bytes(self.dy(index), self.op.outputs[index], nd)
