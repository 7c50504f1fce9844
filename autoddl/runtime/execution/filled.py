"""What an operator reads in a batch that is filled up with padding (`graph.padding`).

Where it adds up rows, those of padding are replaced by what adds nothing, and get no gradient.
Batches of full size pass as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...graph.padding import Padding, Summed
from ...sbp.layout import Shape, local_slices
from ..backend import Backend, Tensor, dtype_of
from ..comm.groups import Groups
from ..kernel import RunState
from .program import Edge, Program


def skip_padding(program: Program, padding: Padding, groups: Groups, state: RunState) -> None:
    """Change the edges of `program` to what the padding of batches asks for."""
    for node in program.nodes:
        for index, edge in enumerate(node.edges):
            key = node.op.name, index
            exponent, rows = padding.sizes.get(key, 0), padding.summed.get(key)
            if exponent:
                edge = _scaled(edge, exponent, state)
            if rows is not None:
                shape = program.graph.tensors[edge.tensor].spec.shape
                edge = _masked(edge, rows, shape, program.graph.batch, groups, state)
            node.edges[index] = edge


def _scaled(edge: Edge, exponent: int, state: RunState) -> Edge:
    forward, backward, before = edge.forward, edge.backward, edge.before

    def change(x: Tensor) -> Tensor:
        return x if state.filled is None else x * state.filled.share**exponent

    return replace(
        edge,
        forward=lambda x: change(forward(x)),
        backward=lambda dy: backward(change(dy)),
        before=lambda dy: before(change(dy)),
    )


def _masked(
    edge: Edge, rows: Summed, shape: Shape, batch: int, groups: Groups, state: RunState
) -> Edge:
    forward, backward, before, backend = edge.forward, edge.backward, edge.before, groups.backend
    dim = rows.state.place.dim
    piece = local_slices(shape, edge.target, groups.mesh, groups.rank)[dim]
    each = shape[dim] // (rows.state.runs * batch)
    found: dict[int, np.ndarray] = {}

    def mask() -> np.ndarray | None:
        """1 for this rank's rows that count, None if all of this micro-batch do."""
        if state.filled is None:
            return None
        left = state.filled.rows_in(state.micro_batch, batch)
        if left not in found:
            one = np.repeat(np.arange(batch) < left, each)
            found[left] = np.tile(one, rows.state.runs)[piece].astype("float32")
        return None if left == batch else found[left]

    def take(x: Tensor) -> Tensor:
        x, kept = forward(x), mask()
        if kept is None:
            return x
        x = _times(backend, x, kept, dim)
        return x if not rows.neutral else x + _like(backend, (1 - kept) * rows.neutral, x, dim)

    def give(dy: Tensor) -> Tensor:
        kept = mask()
        return dy if kept is None else _times(backend, dy, kept, dim)

    return replace(
        edge,
        forward=take,
        backward=lambda dy: backward(give(dy)),
        before=lambda dy: before(give(dy)),
    )


def _times(backend: Backend, x: Tensor, mask: np.ndarray, dim: int) -> Tensor:
    dtype = dtype_of(x)
    if dtype == "bool":
        x = backend.cast(x, "int8")
    return backend.cast(x * _like(backend, mask, x, dim), dtype)


def _like(backend: Backend, values: np.ndarray, x: Tensor, dim: int) -> Tensor:
    """One value for each index of a dim of `x`, in its dtype."""
    shape = [1] * x.ndim
    shape[dim] = len(values)
    return backend.cast(backend.from_numpy(values.reshape(shape).copy()), dtype_of(x))
