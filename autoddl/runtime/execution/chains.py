"""Chains: stretches of operators between which nothing happens, run as one operator.

The framework records all operators of a chain as in an eager loop, and gives the gradients of what
the chain has read in one backward pass, where each operator by itself begins and ends a record of
its own, in Python. A chain ends where a tensor is redistributed, where an operator communicates
inside, reads a state that one before it in the chain changes, where a block that is run again
begins or ends, and where a bucket of gradients leaves while the operators before are still in their
backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...graph.graph import Op
from ...graph.rows import Rows, known_from
from ..backend import Backend, Kernels, Tensor
from ..kernel import Context, Kernel
from .buckets import Bucket
from .program import Key, Node, Program

Names = Collection[str]


@dataclass(frozen=True)
class Link:
    """One operator of a chain; its tensors are places in a list of all.

    cut_ins, cut_outs: its inputs, and the places of its outputs, that no gradient goes through
    dropped:           places that are not read any more
    """

    kernel: Kernel
    context: Context
    attrs: Mapping[str, Any]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    cut_ins: tuple[int, ...]
    cut_outs: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """A kernel: from what a chain reads to what is read of it, which are the places `results`."""

    backend: Backend
    links: tuple[Link, ...]
    size: int
    results: tuple[int, ...]

    def __call__(
        self, ctx: Context, inputs: Sequence[Tensor], attrs: Mapping[str, Any]
    ) -> list[Tensor]:
        there: list[Any] = [*inputs, *[None] * (self.size - len(inputs))]
        for link in self.links:
            given = [there[n] for n in link.ins]
            for n in link.cut_ins:
                given[n] = self.backend.detached(given[n])
            if link.context.updates:  # of a pass that was run again
                link.context.updates.clear()
            found: Any = link.kernel(link.context, given, link.attrs)
            for n in link.dropped:
                there[n] = None
            for n, y in zip(link.outs, found, strict=True):
                there[n] = y
            for n in link.cut_outs:
                there[n] = self.backend.detached(there[n])
        return [there[n] for n in self.results]


def in_chains(
    program: Program,
    backend: Backend,
    rows: Rows,
    buckets: Sequence[Bucket] = (),
    late: Mapping[Key, str] | None = None,
) -> Program:
    """The program with one node in the place of each chain's; `late`: as `Gradients` takes it."""
    apart = _near_known_sums(program, rows)
    kernels = {
        node.op.name: kernel
        for node in program.nodes
        if node.op.name not in apart and (kernel := _kernel(node, backend.kernels)) is not None
    }
    readers = Counter(edge.tensor for node in program.nodes for edge in node.edges)
    nodes: list[Node] = []
    busy = [node for node in program.nodes if not node.idle]
    for run in _runs(busy, kernels, {*_filling(program, buckets), *(late or {}).values()}):
        nodes += [_joined(run, kernels, readers, backend)] if len(run) > 1 else run
    return replace(program, nodes=nodes)


def _kernel(node: Node, kernels: Kernels) -> Kernel | None:
    """With which the operator may be in a chain; None if it may not."""
    if node.context.inner is not None or any(edge.zero_stage > 1 for edge in node.edges):
        return None
    is_plain = node.kernel is not None and node.kernel is kernels.operators[node.op.kind]
    return kernels.chained.get(node.op.kind) if is_plain else None


def _near_known_sums(program: Program, rows: Rows) -> set[str]:
    """Operators of sums that may be known already (`known_sums`), or that read what these do."""
    graph = program.graph
    needed = {name for known in rows.known for name in known_from(graph, known) or ()}
    read = {*rows.known, *(i for op in graph.ops if op.name in needed for i in op.inputs)}
    return needed | {op.name for op in graph.ops if read.intersection(op.inputs)}


def _filling(program: Program, buckets: Sequence[Bucket]) -> set[str]:
    """The operators whose backward pass gives the last gradient of a bucket."""
    bucket_of = {edge.key: n for n, bucket in enumerate(buckets) for edge in bucket.edges}
    found: dict[int, str] = {}
    for node in program.nodes:
        for edge in node.edges:
            if edge.key in bucket_of:
                found.setdefault(bucket_of[edge.key], node.op.name)
    return set(found.values())


def _runs(nodes: Sequence[Node], able: Names, begins: Names) -> Iterator[list[Node]]:
    """All operators, those that may be in one chain together.

    able: may be in a chain; begins: a chain may begin with them, but not go on
    """
    run: list[Node] = []
    for node in nodes:
        made = {name for other in run for name in other.op.outputs}
        changed = {name for other in run for name in _buffers(other)}
        goes_on = (
            (
                node.op.name in able
                and node.op.name not in begins
                and all(edge.is_direct or edge.tensor not in made for edge in node.edges)
                and changed.isdisjoint(_buffers(node))
                and node.block == run[-1].block
            )
            if run
            else False
        )
        if run and not goes_on:
            yield run
            run = []
        run.append(node)
        if node.op.name not in able:
            yield run
            run = []
    if run:
        yield run


def _buffers(node: Node) -> list[str]:
    return [edge.tensor for edge in node.edges if edge.source.kind == "buffer"]


def _joined(
    run: list[Node], kernels: Mapping[str, Kernel], readers: Counter[str], backend: Backend
) -> Node:
    """The node of a chain."""
    takes = {n: t for node in run for n, t in zip(node.op.outputs, node.takes, strict=True)}
    inside = Counter(edge.tensor for node in run for edge in node.edges if edge.tensor in takes)
    edges = [edge for node in run for edge in node.edges if edge.tensor not in takes]
    outside = {edge.key: n for n, edge in enumerate(edges)}
    place = {name: n for n, name in enumerate(takes, len(edges))}
    results = [name for name in takes if readers[name] > inside[name]]
    # whose own formulas do not read them
    products = {y for n in run if n.op.kind in backend.kernels.by_input for y in n.op.outputs}
    links: list[Link] = []
    for node in run:
        ins = tuple(outside[e.key] if e.key in outside else place[e.tensor] for e in node.edges)
        inside.subtract(edge.tensor for edge in node.edges)
        read = {e.tensor for e in node.edges if e.tensor in takes}
        gone = {place[n] for n in read if not inside[n] and n not in results}
        kernel, first = kernels[node.op.name], next(iter(node.op.inputs), "")  # draws read nothing
        if first in products and readers[first] == 1:
            kernel = backend.kernels.in_place.get(node.op.kind, kernel)
        links.append(
            Link(
                kernel, node.context, node.attrs, ins,
                tuple(place[name] for name in node.op.outputs),
                tuple(n for n, e in enumerate(node.edges)
                      if takes.get(e.tensor) and not e.carries_gradient),
                tuple(place[name] for name in node.op.outputs if not takes[name]),
                (*gone, *(outside[e.key] for e in node.edges if e.key in outside)),
            )
        )  # fmt: skip
    chain = Chain(
        backend, tuple(links), len(edges) + len(place), tuple(place[name] for name in results)
    )
    first, end = run[0].op, run[-1].op
    op = Op(
        f"{first.name} to {end.name}", "chain", tuple(edge.tensor for edge in edges),
        tuple(results), {}, module=end.module,
    )  # fmt: skip
    return replace(
        run[-1], op=op, edges=edges, takes=[takes[name] for name in results], kernel=chain,
        attrs={}, inside=tuple(filter(_buffers, run)), first=first.name,
    )  # fmt: skip
