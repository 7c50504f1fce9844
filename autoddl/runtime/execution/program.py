"""A plan as one rank's program: what to call for every operator and edge, worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...graph.graph import Graph, Op
from ...graph.placed import PlannedEdge, PlannedOp
from ...graph.regions import Blocks
from ...sbp.layout import TensorSpec, local_shape
from ...sbp.placement import NdSbp
from ...sbp.signature import Attrs, find_rule, is_matmul
from ..backend import Backend, Tensor, dtype_of
from ..comm.groups import Groups
from ..comm.redistribute import LocalFn, prepare, unchanged
from ..kernel import ByInput, Context, Explicit, Kernel, OpaqueFn, RunState

Key = tuple[str, int]
FED = ("input", "stage_input")
STATE = ("param", "buffer")
SOURCES = (*FED, *STATE)
SINKS = ("loss", "stage_output")
# kinds whose small inputs are stretched to the output, and get a sum as their gradient
_STRETCHES = ("broadcast_add", "broadcast_mul", "bias_add", "normalization", "layer_norm")


@dataclass
class Edge:
    """Input `index` of an operator: where its tensor comes from, and the steps on the way.

    source:  the operator that produces it (`param`, `buffer` and `input` operators are data)
    placed:  as the producer places it; target: as the operator takes it
    is_last: True if nobody reads the tensor later
    before:  what `backward` does to a gradient before it travels
    gives_own: the operator's backward pass makes this gradient, which shares no other's memory
    zero_stage: of a parameter that is stored split, see `planned.PlannedEdge`
    """

    key: Key
    tensor: str
    source: Op
    placed: NdSbp
    target: NdSbp
    forward: LocalFn
    backward: LocalFn
    carries_gradient: bool
    is_last: bool
    before: LocalFn
    gives_own: bool
    zero_stage: int = 0

    @property
    def is_direct(self) -> bool:
        """Nothing happens to the tensor or its gradient on the way."""
        return self.forward is unchanged and self.backward in (unchanged, _unreachable)


@dataclass
class Node:
    """An operator with its kernel. `takes`: which outputs' gradients its backward pass takes.

    block:  number of the block with which it is run again before its backward pass; None for none
    wanted: which inputs' gradients its backward pass gives
    inside: those of a chain's operators (`chains`) that may change state
    idle:   nothing is done in its place: evaluation alone needs it
    first:  the first of a chain's operators
    """

    op: Op
    planned: PlannedOp
    edges: list[Edge]
    takes: list[bool]
    kernel: Kernel | None
    context: Context
    attrs: Mapping[str, Any]
    block: int | None = None
    inside: tuple[Node, ...] = ()
    idle: bool = False
    first: str = ""

    @property
    def begins(self) -> str:
        """The operator with which it begins, which is the last one in its backward pass."""
        return self.first or self.op.name

    @cached_property
    def wanted(self) -> tuple[bool, ...]:
        return tuple(edge.carries_gradient for edge in self.edges)

    @cached_property
    def carries_gradient(self) -> bool:
        return any(self.wanted)

    @cached_property
    def fetched_twice(self) -> Edge | None:
        """An input that is forgotten after the forward pass, if there is one (ZeRO's stage 3)."""
        return next((edge for edge in self.edges if edge.zero_stage == 3), None)

    @property
    def fetched_back(self) -> Edge | None:
        """That one where the backward pass fetches it, as no run just before it has."""
        return self.fetched_twice if self.block is None else None

    @property
    def unlike_rows(self) -> tuple[int, ...]:
        """The mesh axes along which a BatchNorm's rows are split."""
        channel = self.op.attrs["axis"] % len(self.context.spec.inputs[0].shape)
        rows = self.planned.ins[0]
        return tuple(a for a, p in enumerate(rows) if p.is_split and p.dim != channel)


@dataclass
class Program:
    """The operators in order, without the sources.

    made: is told when an operator's backward pass was asked for, and what gradients it gives
    """

    graph: Graph
    ops: Mapping[str, PlannedOp]
    nodes: list[Node]
    made: Callable[[Node, float, Sequence[Tensor | None]], None] | None = None

    @cached_property
    def uses(self) -> tuple[Edge, ...]:
        """The uses of parameters that get a gradient, in the order of the operators."""
        edges = (edge for node in self.nodes for edge in node.edges)
        return tuple(e for e in edges if e.source.kind == "param" and e.carries_gradient)

    @cached_property
    def parameters(self) -> tuple[Edge, ...]:
        """The uses of parameters that stay from the start of a step to its end."""
        edges = (edge for node in self.nodes for edge in node.edges)
        return tuple(e for e in edges if e.source.kind == "param" and e.zero_stage < 3)

    @cached_property
    def gathered(self) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
        """What ZeRO's stage 3 gathers in a forward and in a backward pass, in order."""
        blocks: dict[int, list[Node]] = {}
        for node in self.nodes:
            if node.block is not None:
                blocks.setdefault(node.block, []).append(node)
        backward: list[Node] = []
        for node in reversed(self.nodes):
            if node.block is None:
                backward += [node] * node.carries_gradient
            else:
                backward += blocks.pop(node.block, [])  # run again before its backward pass
        one, other = (
            tuple(node.fetched_twice for node in nodes if node.fetched_twice is not None)
            for nodes in (self.nodes, backward)
        )
        return one, other

    @cached_property
    def block_inputs(self) -> Mapping[int, frozenset[str]]:
        """Block -> the tensors that its operators read and none of them makes; no parameters."""
        read: dict[int, set[str]] = {}
        for node in self.nodes:
            if node.block is not None:
                found = read.setdefault(node.block, set())
                found.update(e.tensor for e in node.edges if e.source.kind not in STATE)
        for node in self.nodes:
            if node.block is not None:
                read[node.block].difference_update(node.op.outputs)
        return {block: frozenset(names) for block, names in read.items()}


def compile_program(
    graph: Graph,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[Key, PlannedEdge],
    groups: Groups,
    state: RunState,
    opaque: Mapping[str, OpaqueFn],
    wanted: frozenset[str] | None = None,
    blocks: Blocks = (),
    *,
    by_input: bool = False,
    scales: Mapping[Key, float] | None = None,
    idle: Collection[str] = (),
) -> Program:
    """The program of `graph` under the placements `ops` and the paths `edges`.

    wanted:   names of tensors or operators; only what they need is in the program (None: all)
    blocks:   operators that are run again before their backward pass
    by_input: heavy operators' kernels give each input's gradient by itself
    scales:   what an input of an operator, and the gradient that it gets, is multiplied by
    idle:     names of operators in whose place nothing is done
    """
    needed = None if wanted is None else needed_ops(graph, wanted)
    chosen = [
        op for op in graph.ops if op.kind not in SOURCES and (needed is None or op.name in needed)
    ]
    last: dict[str, Key] = {}
    for op in (op for op in chosen if op.name not in idle):
        last.update({name: (op.name, index) for index, name in enumerate(op.inputs)})
    known = groups.backend.kernels
    kernels = {**known.operators, **(known.by_input if by_input else {})}
    block_of = {name: number for number, block in enumerate(blocks) for name in block}
    nodes = []
    for op in chosen:
        planned = ops[op.name]
        context = _context(graph, op, planned, groups, state, opaque)
        if op.name in idle:
            nodes.append(Node(op, planned, [], [], None, context, {}, idle=True))
            continue
        takes = _takes(graph, op, planned)
        flows = wanted is None and (any(takes) or op.kind in SINKS)
        nodes.append(
            Node(
                op,
                planned,
                [
                    _scaled(
                        _edge(graph, ops, edges, groups, op, index, flows, last, wanted),
                        (scales or {}).get((op.name, index), 1.0),
                    )
                    for index in range(len(op.inputs))
                ],
                takes,
                None if op.kind in SINKS else _kernel(op, planned, groups, kernels[op.kind]),
                context,
                _local_attrs(graph, op, planned, groups),
                block_of.get(op.name),
            )
        )
    return Program(graph, ops, nodes)


def _takes(graph: Graph, op: Op, planned: PlannedOp) -> list[bool]:
    """Of which outputs an operator's backward pass takes the gradients."""
    pairs = zip(op.outputs, planned.grad_outs, strict=True)
    return [name in graph.needs_grad and placement is not None for name, placement in pairs]


def _kernel(op: Op, planned: PlannedOp, groups: Groups, kernel: Kernel) -> Kernel:
    """The kernel, unless the operator's work is split among hosts and this rank's have no share."""
    placed = (*planned.ins, *planned.outs)
    if groups.mesh.share_of(groups.rank) or not any(nd[0].is_split for nd in placed):
        return kernel
    return kernel if 0 in planned.inner_axes else Idle(groups.backend, kernel)


@dataclass(frozen=True)
class Idle:
    """A kernel of hosts without a share: of what is split there is nothing, sums are of nothing.

    An output that all have whole (how many labels count) depends on nothing that is split: it is
    what the operator's own kernel finds, which sees one zero where there is nothing.
    """

    backend: Backend
    kernel: Kernel

    def __call__(self, ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
        def zeros(tensors: Sequence[TensorSpec], placed: Sequence[NdSbp | None]) -> list[Any]:
            return [
                nd and self.backend.zeros(local_shape(t.shape, nd, ctx.mesh, ctx.rank), t.dtype)
                for t, nd in zip(tensors, placed, strict=True)
            ]

        outputs = zeros(ctx.spec.outputs, ctx.planned.outs)
        whole = [n for n, nd in enumerate(ctx.planned.outs) if nd[0].is_broadcast]
        if whole:
            shapes = [tuple(max(size, 1) for size in x.shape) for x in inputs]
            seen = [
                x if all(x.shape) else self.backend.zeros(shape, dtype_of(x))
                for x, shape in zip(inputs, shapes, strict=True)
            ]
            found = self.kernel(ctx, seen, attrs)
            made = found.outputs if isinstance(found, Explicit | ByInput) else found
            for n in whole:
                outputs[n] = made[n]
        return Explicit(outputs, lambda grads: zeros(ctx.spec.inputs, ctx.planned.grad_ins))


def needed_ops(graph: Graph, wanted: frozenset[str]) -> set[str]:
    """Names of the operators that the tensors (or operators) `wanted` depend on."""
    tensors = set(wanted)
    names = set()
    for op in reversed(graph.ops):
        if op.name in wanted or any(name in tensors for name in op.outputs):
            names.add(op.name)
            tensors.update(op.inputs)
    return names


def _edge(
    graph: Graph,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[Key, PlannedEdge],
    groups: Groups,
    op: Op,
    index: int,
    flows: bool,
    last: Mapping[str, Key],
    kept: frozenset[str] | None,
) -> Edge:
    key = (op.name, index)
    name = op.inputs[index]
    source = graph.producers[name]
    path = edges.get(key, PlannedEdge(op.name, index))
    shape = graph.tensors[name].spec.shape
    planned = ops[op.name]
    placed = ops[source.name].outs[source.outputs.index(name)]
    gradient = planned.grad_ins[index]
    backward = _unreachable
    if flows and gradient is not None and name in graph.needs_grad:
        backward = prepare(path.backward, shape, gradient, groups, f"the gradient of {name}")
    return Edge(
        key,
        name,
        source,
        placed,
        planned.ins[index],
        prepare(path.forward, shape, placed, groups, op.name),
        backward,
        backward is not _unreachable,
        last[name] == key and name not in (kept or ()),
        unchanged,
        _gives_own(graph, op, index, groups, planned),
        path.zero_stage,
    )


def _gives_own(graph: Graph, op: Op, index: int, groups: Groups, planned: PlannedOp) -> bool:
    """True where the gradient is a product, or a sum over what the input was stretched along.

    Others may be views of the output's gradient, as an addition's are.
    """
    if is_matmul(op.kind) or op.kind in groups.backend.kernels.by_input:
        return True
    spec, given = graph.tensors[op.inputs[index]].spec, planned.grad_ins[index]
    if op.kind not in _STRETCHES or given is None:
        return False
    out = graph.tensors[op.outputs[0]].spec
    sizes = (
        math.prod(local_shape(shape, nd, groups.mesh, groups.rank))
        for shape, nd in ((spec.shape, given), (out.shape, planned.outs[0]))
    )
    return next(sizes) < next(sizes)


def _scaled(edge: Edge, factor: float) -> Edge:
    """The edge with what it carries, and the gradient of that, times a factor."""
    if factor == 1.0:
        return edge
    forward, backward, before = edge.forward, edge.backward, edge.before
    return replace(
        edge,
        forward=lambda x: forward(x) * factor,
        backward=lambda dy: backward(dy * factor),
        before=lambda dy: before(dy * factor),
    )


def _unreachable(x: Any) -> Any:
    raise AssertionError("this edge carries no gradient")


def _context(
    graph: Graph,
    op: Op,
    planned: PlannedOp,
    groups: Groups,
    state: RunState,
    opaque: Mapping[str, OpaqueFn],
) -> Context:
    inner = groups.along(planned.inner_axes) if planned.inner_axes else None
    return Context(
        op.name,
        graph.spec(op),
        planned,
        groups.mesh,
        groups.rank,
        state,
        inner,
        opaque.get(op.name),
        groups.backend.facts.device,
    )


def _local_attrs(graph: Graph, op: Op, planned: PlannedOp, groups: Groups) -> Mapping[str, Any]:
    spec = graph.spec(op)
    rule = find_rule(op.kind)
    assert rule is not None, f"{op.name}: no rule for {op.kind}"

    def shapes(tensors: Any, placements: Any) -> tuple[tuple[int, ...], ...]:
        return tuple(
            local_shape(t.shape, nd, groups.mesh, groups.rank)
            for t, nd in zip(tensors, placements, strict=True)
        )

    ins, outs = shapes(spec.inputs, planned.ins), shapes(spec.outputs, planned.outs)
    return rule.local_attrs(spec, ins, outs)
