"""What hints demand of the operators of a graph.

A `Demand` is of one operator and looks at its placements along one mesh axis at a time, so the
search (strategies) and the check of a plan (placements) ask the same question:

    batch    the axis counts if all tensors with a batch are split along it and nothing else is
    weight   the axis counts if input `index`, a weight, is split (along `dim`, if that is given);
             it must not be split along another dim
    in, out  input or output `index` has the placement

The devices along the axes that count are as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp, Placement
from ..sbp.signature import find_rule, is_matmul
from .cut import body_of
from .graph import SOURCE_KINDS, Graph, Op
from .hints import DEFAULT, Hint, HintAt, check_matched

_NO_WORK = (*SOURCE_KINDS, "fork", "loss", "stage_input", "stage_output")
COUNTS, NEUTRAL, FORBIDDEN = 1, 0, -1


@dataclass(frozen=True)
class Demand:
    """See the module. at: the hint that it comes from, which equal demands may have several of."""

    kind: Literal["batch", "weight", "in", "out"]
    hint: Hint
    index: int = 0
    at: HintAt = field(compare=False, kw_only=True)

    def devices(self, mesh: Mesh) -> int | None:
        """Along the axes that count; None if any number will do."""
        return (self.hint.devices or mesh.size) if self.kind in ("batch", "weight") else None

    def wanted(self, mesh: Mesh) -> tuple[Placement, ...]:
        """Of "in" and "out" the placement on each axis. ValueError if there are too few or many."""
        given = tuple(map(Placement.parse, self.hint.placement))
        count = mesh.num_axes
        if len(given) == 1 or count == 0:
            return given[:1] * count
        if len(given) == 2 and mesh.nodes > 1 and mesh.gpus_per_node > 1:
            return tuple(given[axis.link == "intra"] for axis in mesh.axes)
        if len(given) != count:
            raise ValueError(
                f"the hint {self.at} has {len(given)} placements; the mesh {mesh} takes one for "
                f"all, or one for each of its {count} axes "
                f"({' x '.join(map(str, mesh.axes))}; n: hosts, g: devices of a host)"
                + (", or one for hosts and one for devices" if mesh.nodes > 1 else "")
            )
        return given

    def on_axis(
        self,
        graph: Graph,
        op: Op,
        ins: Sequence[Placement],
        outs: Sequence[Placement],
        wanted: Placement | None,
    ) -> int:
        """Whether an axis on which the operator is placed so counts, or is forbidden.

        wanted: of "in" and "out"
        """
        if self.kind == "batch":
            return COUNTS if splits_only_batch(graph, op, ins, outs) else NEUTRAL
        own = (outs if self.kind == "out" else ins)[self.index]
        if self.kind != "weight":
            return COUNTS if own == wanted else FORBIDDEN
        if not own.is_split:
            return NEUTRAL
        return COUNTS if self.hint.dim in (None, own.dim) else FORBIDDEN

    def counted(
        self, graph: Graph, op: Op, ins: Sequence[NdSbp],
        outs: Sequence[NdSbp], mesh: Mesh,
    ) -> int | None:  # fmt: skip
        """Devices along the axes that count, None if one is forbidden.

        ins, outs: of each input and output its placement on each axis
        """
        wanted = self.wanted(mesh) if self.kind in ("in", "out") else (None,) * mesh.num_axes
        found = [
            self.on_axis(graph, op, [nd[a] for nd in ins], [nd[a] for nd in outs], wanted[a])
            for a in range(mesh.num_axes)
        ]
        if FORBIDDEN in found:
            return None
        return mesh.extent(a for a, counts in enumerate(found) if counts == COUNTS)


Demands = Mapping[str, tuple[Demand, ...]]  # by operator


def find_demands(graph: Graph, hints: Sequence[HintAt]) -> Demands:
    """Of the operators of a graph. ValueError for a hint that names nothing it can be for."""
    found: dict[str, list[Demand]] = {}
    named: set[str] = set()
    for at in hints:
        if at.where == DEFAULT or at.hint.kind in ("stage", "least"):
            continue
        params = {op.attrs["name"] for op in graph.params if at.matches(op.attrs["name"])}
        inside = [op for op in graph.ops if is_inside(at, op.module)]
        check_matched(at, params or inside, _paths(graph))
        own = list(_of_hint(graph, at, inside, params))
        if not own:
            raise ValueError(
                f"the hint {at} finds nothing that it could be for: {_WANTED[at.hint.kind]}"
            )
        named |= {op.name for op in inside} | {name for name, _ in own}
        for name, demand in own:
            found.setdefault(name, []).append(demand)
    for at in hints:
        if at.where == DEFAULT:
            rest = [op for op in graph.ops if op.name not in named]
            for name, demand in _of_hint(graph, at, rest, set()):
                found.setdefault(name, []).append(demand)
    return {name: tuple(dict.fromkeys(own)) for name, own in found.items()}


def stage_starts(graph: Graph, hints: Sequence[HintAt]) -> frozenset[str] | None:
    """The operators before which stages may begin; None if no hint says so.

    Of each module that a hint names it is the first operator. ValueError if it names none.
    """
    stages = [at for at in hints if at.hint.kind == "stage"]
    found: dict[str, str] = {}  # module -> operator
    body = body_of(graph)
    for at in stages:
        own: dict[str, str] = {}
        for op in body:
            parts = op.module.split(".")
            for path in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
                if at.matches(path):
                    own.setdefault(path, op.name)
        check_matched(at, own, (op.module for op in body))
        found |= own
    return frozenset(found.values()) if stages else None


def host_with_share(hints: Sequence[HintAt], mesh: Mesh) -> HintAt | None:
    """The first hint to leave a host as little as possible, to which the mesh gives a share.

    ValueError if there is no such host.
    """
    for at in hints:
        if at.host is not None and at.host >= mesh.nodes:
            raise ValueError(f"the hint {at} names no host: they are 0 to {mesh.nodes - 1}")
        if at.host is not None and mesh.share_of(at.host * mesh.gpus_per_node):
            return at
    return None


_WANTED = {
    "replicate": "it is for a module that computes on tensors with a batch",
    "split": "it is for weights of products, convolutions and lookups, or a module that has some",
    "place": "it is for a parameter that something reads, or a module with outputs",
}


def is_inside(at: HintAt, module: str) -> bool:
    """Whether a hint names the module of this path or one around it."""
    parts = module.split(".") if module else []
    return any(at.matches(".".join(parts[:n])) for n in range(len(parts) + 1))


def _paths(graph: Graph) -> Iterator[str]:
    for op in graph.ops:
        parts = op.module.split(".")
        yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    yield from (op.attrs["name"] for op in graph.params)


def _of_hint(
    graph: Graph, at: HintAt, inside: Sequence[Op], params: set[str]
) -> Iterator[tuple[str, Demand]]:
    """(operator, demand); params: those that the hint names"""
    if at.hint.kind == "replicate":
        for op in inside:
            if has_batch(graph, op):
                yield op.name, Demand("batch", at.hint, at=at)
    elif at.hint.kind == "split":
        names = {op.name for op in inside}
        for op in graph.ops:
            for index, param in _weights(graph, op) if _is_heavy(op) else ():
                is_named = op.name in names or param.attrs["name"] in params
                if is_named and len(graph.tensors[op.inputs[index]].spec.shape) > 1:
                    yield op.name, Demand("weight", at.hint, index, at=at)
    elif params:
        for op in graph.ops:
            for index, param in _weights(graph, op) if op.kind not in _PASSING else ():
                if param.attrs["name"] in params:
                    yield op.name, Demand("in", at.hint, index, at=at)
    else:
        names = {op.name for op in inside}
        for op in inside:
            for index, tensor in enumerate(op.outputs if op.kind not in SOURCE_KINDS else ()):
                readers = {reader.name for reader, _ in graph.consumers[tensor]}
                if tensor in graph.outputs or not readers <= names:
                    yield op.name, Demand("out", at.hint, index, at=at)


def has_batch(graph: Graph, op: Op) -> bool:
    """Whether it computes on tensors with a batch."""
    if op.kind in _NO_WORK or op.name in graph.free_ops:
        return False
    return any(graph.tensors[name].batch_dims for name in (*op.inputs, *op.outputs))


_PASSING = ("cast", "fork")  # hand a parameter on


def _weights(graph: Graph, op: Op) -> Iterator[tuple[int, Op]]:
    """The parameters that an operator reads, if need be in another precision."""
    for index, tensor in enumerate(op.inputs):
        producer = graph.producers[tensor]
        while producer.kind in _PASSING:
            producer = graph.producers[producer.inputs[0]]
        if producer.kind == "param":
            yield index, producer


def _is_heavy(op: Op) -> bool:
    rule = find_rule(op.kind)
    return rule is not None and rule.heavy


def splits_only_batch(
    graph: Graph, op: Op, ins: Sequence[Placement], outs: Sequence[Placement]
) -> bool:
    """True if every tensor with a batch is split along it, and nothing else is split."""
    for name, own in zip((*op.inputs, *op.outputs), (*ins, *outs), strict=True):
        dims = graph.tensors[name].batch_dims
        if own.is_split != bool(dims) or (dims and own.dim != dims[0]):
            return False
    return True


def op_experts(graph: Graph, op: Op) -> int:
    """How many matrices the trained weight of a product of experts has; 0 of other operators."""
    if not is_matmul(op.kind):
        return 0
    weights = (graph.tensors[i].spec for i in op.inputs if graph.origin(i).kind == "param")
    return max((w.shape[0] for w in weights if len(w.shape) > 2), default=0)
