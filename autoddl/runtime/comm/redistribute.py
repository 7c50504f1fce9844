"""The steps of a redistribution on real processes.

    prepare(steps, shape, nd, groups) -> run;    run(local tensor placed as nd) -> local tensor

A step's geometry (pieces, permutations) is worked out once, in `prepare`, and applied to each
tensor. A dim that a collective cuts or joins becomes two, the rank's number and the piece, and the
number alone is brought to the front or taken from there: the buffers hold the pieces of the ranks
one after the other, nothing but these pieces travels, and long runs stay together (OneFlow's CPU
copies a whole transpose 20 times slower). Pieces of unequal size are padded to the largest, made
equal first, or sent as they are (`sbp.work`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from ...sbp.collectives import Step
from ...sbp.layout import Shape, local_slices
from ...sbp.placement import B, NdSbp, P, S
from ...sbp.work import Evening
from ..backend import Backend, Tensor, dtype_of
from .groups import Group, Groups

LocalFn = Callable[[Tensor], Tensor]


def prepare(
    steps: Sequence[Step], shape: Shape, nd: NdSbp, groups: Groups, why: str = ""
) -> LocalFn:
    """A function that takes a rank's part of a tensor of global `shape` from `nd` through `steps`.

    It must be called by all ranks in the same order. No steps: the identity. All of it runs beside
    computation, copies before and after a collective too: in the queue of computation they would
    hold up, until the tensor is there, what does not need it.

    why: what it is for, which a job that is lost says of its last collective
    """
    functions: list[LocalFn] = []
    ways = {**WAYS, **groups.ways}
    for step in steps:
        way = ways.get(step.way)
        if way is None:
            raise ValueError(
                f"the runtime does not know {step.way}, as the plan's step {step} asks for; it has "
                f"{', '.join(ways)}: give the trainer `ways` with it"
            )
        functions.append(way(step, shape, nd, groups))
        nd = step.apply(nd)
    if not functions:
        return lambda x: x
    is_free = all(step.is_free for step in steps)
    if is_free and len(functions) == 1:
        return functions[0]

    def run(x: Tensor) -> Tensor:
        groups.why = why
        with nullcontext() if is_free else groups.backend.beside():
            for function in functions:
                x = function(x)
        groups.why = ""
        return x

    return run


def to_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Steps from `nd` to all Broadcast, for outputs and state, where no plan chose any.

    They take each label's axes at once: first the sums, then the gathers.
    """
    steps: list[Step] = []
    if nd.has_partial:
        steps.append(Step.between(P, B, nd.axes_of(P)))
    for dim in nd.split_dims():
        steps.append(Step.between(S(dim), B, nd.axes_of(S(dim))))
    return tuple(steps)


def from_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Local steps from all Broadcast to `nd`, which is not Partial."""
    assert not nd.has_partial
    return tuple(Step.between(B, S(dim), nd.axes_of(S(dim))) for dim in nd.split_dims())


def _sizes(shape: Shape, nd: NdSbp, group: Group, groups: Groups, dim: int) -> list[int]:
    """The sizes along `dim` of the pieces of the group's ranks, which follow one another."""
    pieces = [local_slices(shape, nd, groups.mesh, rank)[dim] for rank in group.ranks]
    assert all(a.stop == b.start for a, b in itertools.pairwise(pieces)), (
        f"the pieces of dim {dim} under {nd} do not follow one another in the group {group.ranks}"
    )
    return [piece.stop - piece.start for piece in pieces]


def _all_reduce(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    return groups.along(step.axes).all_reduce


def _all_gather(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group, dim = groups.along(step.axes), step.source.dim
    sizes = _sizes(shape, nd, group, groups, dim)
    largest, backend = max(sizes), group.backend

    def run(x: Tensor) -> Tensor:
        piece = _fill_up(backend, x, dim, largest)
        pieces = group.all_gather(piece.reshape(-1)).reshape((group.size, *piece.shape))
        return _drop_padding(backend, _join(backend, pieces, dim), dim, sizes)

    return run


def _reduce_scatter(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group, dim = groups.along(step.axes), step.target.dim
    sizes = _sizes(shape, step.apply(nd), group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        pieces = _cut(backend, _pad_pieces(backend, x, dim, sizes), dim, group.size)
        piece = group.reduce_scatter(pieces.reshape(-1)).reshape(pieces.shape[1:])
        return _head(backend, piece, dim, sizes[group.index])

    return run


def _balanced_gather(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Unequal pieces are made equal, then gathered (`sbp.work`)."""
    group, dim = groups.along(step.axes), step.source.dim
    sizes = _sizes(shape, nd, group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        front = _to_front(backend, x, dim)
        rest = tuple(front.shape[1:])
        evening = Evening(tuple(n * math.prod(rest) for n in sizes))
        every = group.all_gather(group.make_equal(front.reshape(-1), evening))
        places = [place for n in range(group.size) for place in evening.places(n)]
        whole = backend.cat([backend.narrow(every, 0, *place) for place in places], 0)
        return _from_front(backend, whole.reshape((sum(sizes), *rest)), dim)

    return run


def _balanced_scatter(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Reduced in equal parts, of which the unequal pieces are then made."""
    group, dim = groups.along(step.axes), step.target.dim
    sizes = _sizes(shape, step.apply(nd), group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        front = _to_front(backend, x, dim)
        rest, flat = tuple(front.shape[1:]), front.reshape(-1)
        evening = Evening(tuple(n * math.prod(rest) for n in sizes))
        order, at = [], 0
        for place, size in (p for n in range(group.size) for p in evening.places(n)):
            order.append((place, backend.narrow(flat, 0, at, size)))
            at += size
        parts, end = [], 0
        for place, part in sorted(order, key=lambda item: item[0]):
            parts += [backend.zeros((place - end,), dtype_of(x))] if place > end else []
            parts.append(part)
            end = place + int(part.shape[0])
        missing = evening.part * group.size - end
        parts += [backend.zeros((missing,), dtype_of(x))] if missing else []
        piece = group.make_unequal(group.reduce_scatter(backend.cat(parts, 0)), evening)
        return _from_front(backend, piece.reshape((sizes[group.index], *rest)), dim)

    return run


def _all_to_all(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Cut one dim into pieces, one for each rank, and join the pieces got along another."""
    group, cut, joined = groups.along(step.axes), step.target.dim, step.source.dim
    assert cut != joined
    cut_sizes = _sizes(shape, step.apply(nd), group, groups, cut)
    joined_sizes = _sizes(shape, nd, group, groups, joined)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        pieces = _cut(backend, x, cut, group.size)
        got = group.all_to_all(pieces.reshape(group.size, -1)).reshape(pieces.shape)
        return _join(backend, got, joined)

    def run_uneven(x: Tensor) -> Tensor:
        shape, starts = list(x.shape), itertools.accumulate(cut_sizes, initial=0)
        pieces = [backend.narrow(x, cut, at, n) for at, n in zip(starts, cut_sizes, strict=False)]
        shape[cut] = cut_sizes[group.index]
        shapes = [(*shape[:joined], n, *shape[joined + 1 :]) for n in joined_sizes]
        flat = [backend.contiguous(piece).reshape(-1) for piece in pieces]
        # a pair's are of equal size where both dims are cut by the same shares
        swapped = [max(int(p.shape[0]), math.prod(n)) for p, n in zip(flat, shapes, strict=True)]
        got = group.exchange(
            [_fill_up(backend, p, 0, n) for p, n in zip(flat, swapped, strict=True)]
        )
        parts = [_head(backend, p, 0, math.prod(n)) for p, n in zip(got, shapes, strict=True)]
        return backend.cat([p.reshape(n) for p, n in zip(parts, shapes, strict=True)], joined)

    return run_uneven if len({*cut_sizes}) > 1 or len({*joined_sizes}) > 1 else run


def _slice(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group, dim = groups.along(step.axes), step.target.dim
    sizes = _sizes(shape, step.apply(nd), group, groups, dim)
    start, length = sum(sizes[: group.index]), sizes[group.index]
    backend = group.backend
    return lambda x: backend.contiguous(backend.narrow(x, dim, start, length))


def _to_partial(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """One rank of the group keeps what is broadcast; a piece of what is split gets zeros around."""
    group, backend = groups.along(step.axes), groups.backend
    if step.source.is_broadcast:
        return (
            (lambda x: x)
            if group.index == 0
            else (lambda x: backend.zeros(tuple(x.shape), dtype_of(x)))
        )
    dim = step.source.dim
    sizes = _sizes(shape, nd, group, groups, dim)
    before, after = sum(sizes[: group.index]), sum(sizes[group.index + 1 :])

    def run(x: Tensor) -> Tensor:
        parts = [_zeros(backend, x, dim, before), x, _zeros(backend, x, dim, after)]
        return backend.cat([part for part in parts if part.shape[dim]], dim)

    return run


# `Step.way` -> what prepares it; `Groups.ways` has more, of other algorithms
WAYS: dict[str, Callable[[Step, Shape, NdSbp, Groups], LocalFn]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "slice": _slice,
    "to_partial": _to_partial,
    "all_gather[balanced]": _balanced_gather,
    "reduce_scatter[balanced]": _balanced_scatter,
}


def _to_front(backend: Backend, x: Tensor, dim: int) -> Tensor:
    order = (dim, *(d for d in range(x.ndim) if d != dim))
    return backend.contiguous(backend.permute(x, order)) if dim else x


def _from_front(backend: Backend, x: Tensor, dim: int) -> Tensor:
    order = (*range(1, dim + 1), 0, *range(dim + 1, x.ndim))
    return backend.contiguous(backend.permute(x, order)) if dim else x


def _cut(backend: Backend, x: Tensor, dim: int, count: int) -> Tensor:
    """`x` cut along `dim` into `count` equal pieces: [count, *piece]."""
    shape = [*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]]
    pieces = x.reshape(shape)
    if dim == 0:
        return pieces
    others = (d for d in range(pieces.ndim) if d != dim)
    return backend.contiguous(backend.permute(pieces, (dim, *others)))


def _join(backend: Backend, pieces: Tensor, dim: int) -> Tensor:
    """The inverse of `_cut`: pieces [count, *piece] one after the other along `dim`."""
    if dim:
        order = (*range(1, dim + 1), 0, *range(dim + 1, pieces.ndim))
        pieces = backend.permute(pieces, order)
    shape = list(pieces.shape)
    shape[dim : dim + 2] = [shape[dim] * shape[dim + 1]]
    return pieces.reshape(shape)


def _zeros(backend: Backend, x: Tensor, dim: int, size: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = size
    return backend.zeros(tuple(shape), dtype_of(x))


def _fill_up(backend: Backend, x: Tensor, dim: int, size: int) -> Tensor:
    """`x` with zeros behind it along `dim`, up to `size`."""
    if x.shape[dim] == 0:
        return _zeros(backend, x, dim, size)
    missing = size - x.shape[dim]
    return backend.cat([x, _zeros(backend, x, dim, missing)], dim) if missing else x


def _head(backend: Backend, x: Tensor, dim: int, size: int) -> Tensor:
    """The first `size` of dim `dim`."""
    if x.shape[dim] == size:
        return x
    return backend.contiguous(backend.narrow(x, dim, 0, size))


def _pad_pieces(backend: Backend, x: Tensor, dim: int, sizes: list[int]) -> Tensor:
    """Cut dim `dim` into pieces of `sizes` and fill each up to the largest."""
    largest = max(sizes)
    if min(sizes) == largest:
        return x
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pieces = [backend.narrow(x, dim, at, n) for at, n in zip(starts, sizes, strict=True)]
    return backend.cat([_fill_up(backend, piece, dim, largest) for piece in pieces], dim)


def _drop_padding(backend: Backend, x: Tensor, dim: int, sizes: list[int]) -> Tensor:
    """The inverse of `_pad_pieces`."""
    largest = max(sizes)
    if min(sizes) == largest:
        return x
    pieces = [backend.narrow(x, dim, i * largest, n) for i, n in enumerate(sizes) if n]
    return backend.cat(pieces, dim)
