"""Simulated devices: tensors are cut into shards and reassembled, and functions run in lockstep."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..layout import Shape, local_shape, local_slices
from ..mesh import Mesh
from ..placement import NdSbp

Array = NDArray[Any]
T = TypeVar("T")
RELATIVE, ABSOLUTE = 1e-7, 1e-9  # tolerances, for float64


class Disproved(ValueError):
    """A claim about shards does not hold; the message names the tensor."""


@dataclass(frozen=True)
class AllReduce:
    """What a communicating function yields; it is sent the result.

    how: the sum or the largest of all ranks; or the sum of those before, or after, each
    """

    value: Array
    how: Literal["sum", "max", "before", "after"] = "sum"


Lockstep = Generator[AllReduce, Array, T]


def scatter(whole: Array, nd: NdSbp, mesh: Mesh, rng: np.random.Generator) -> list[Array]:
    """Each rank's shard of `whole`; Partial axes get random summands of it."""
    axes = [a for a, p in enumerate(nd) if p.is_partial]
    first, *others = itertools.product(*(range(mesh.extents[a]) for a in axes))
    summands: dict[tuple[int, ...], Array] = {
        key: rng.standard_normal(whole.shape) for key in others
    }
    summands[first] = whole - sum(summands.values()) if others else whole
    return [
        summands[tuple(mesh.coords(rank)[a] for a in axes)][
            local_slices(whole.shape, nd, mesh, rank)
        ]
        for rank in range(mesh.size)
    ]


def assemble(parts: Sequence[Array], nd: NdSbp, mesh: Mesh, shape: Shape) -> Array:
    """The whole tensor from each rank's shard.

    Raises Disproved if a shard has another shape than its layout, or copies differ.
    """
    total = np.zeros(shape)
    copies: dict[tuple[int, ...], tuple[int, Array]] = {}
    for rank, part in enumerate(parts):
        expected = local_shape(shape, nd, mesh, rank)
        if part.shape != expected:
            raise Disproved(f"rank {rank} has the shape {part.shape} instead of {expected}")
        key = tuple(c for c, p in zip(mesh.coords(rank), nd, strict=True) if not p.is_broadcast)
        if key not in copies:
            copies[key] = (rank, part)
            total[local_slices(shape, nd, mesh, rank)] += part
        elif not close(copies[key][1], part):
            raise Disproved(f"ranks {copies[key][0]} and {rank} have different copies")
    return total


def close(left: Array, right: Array) -> bool:
    """True if two float64 arrays are equal but for rounding."""
    return bool(np.allclose(left, right, rtol=RELATIVE, atol=ABSOLUTE))


def run_alone(program: T | Lockstep[T]) -> T:
    """The result of a program on one device, where an all-reduce returns its input."""
    results, _ = run_in_lockstep([program], Mesh(1, 1), ())
    return results[0]


def run_in_lockstep(
    programs: Sequence[T | Lockstep[T]], mesh: Mesh, axes: Iterable[int]
) -> tuple[list[T], list[tuple[Array, ...]]]:
    """Run one program per rank; return their results and the all-reduced values, by collective.

    A program is a result, or a generator that yields `AllReduce`s and returns the result. The
    collectives run in the groups along `axes`. Raises Disproved if programs get out of step.
    """
    running = {r: p for r, p in enumerate(programs) if isinstance(p, Generator)}
    results: dict[int, Any] = {r: p for r, p in enumerate(programs) if r not in running}
    answers: Mapping[int, Array | None] = dict.fromkeys(running)
    collectives: list[tuple[Array, ...]] = []
    groups = {mesh.group(rank, axes) for rank in range(mesh.size)}
    while running:
        asked: dict[int, AllReduce] = {}
        for rank, program in tuple(running.items()):
            try:
                asked[rank] = program.send(answers[rank])  # type: ignore[arg-type]
            except StopIteration as stop:
                results[rank] = stop.value
                del running[rank]
        if not asked:
            break
        if len(asked) != len(programs):
            raise Disproved("some ranks wait for an all-reduce that the others do not run")
        collectives.append(tuple(asked[rank].value for rank in range(mesh.size)))
        answers = {
            rank: answer
            for group in groups
            for rank, answer in zip(group, _reduce([asked[r] for r in group]), strict=True)
        }
    return [results[rank] for rank in range(len(programs))], collectives


def _reduce(asked: Sequence[AllReduce]) -> list[Array]:
    if len({(a.how, np.shape(a.value)) for a in asked}) > 1:
        raise Disproved("the ranks of a group all-reduce different things")
    values, how = np.stack([a.value for a in asked]), asked[0].how
    if how in ("sum", "max"):
        return [values.sum(0) if how == "sum" else values.max(0)] * len(asked)
    ranks = range(len(asked))
    return [values[:n].sum(0) if how == "before" else values[n + 1 :].sum(0) for n in ranks]
