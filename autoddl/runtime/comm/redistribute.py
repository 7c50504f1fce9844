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
from functools import partial

from ...sbp.collectives import Step
from ...sbp.layout import Shape, local_slices
from ...sbp.placement import B, NdSbp, P, S
from ...sbp.work import Evening
from ..backend import Backend, Tensor, dtype_of
from .groups import Group, Groups

LocalFn = Callable[[Tensor], Tensor]


def prepare(
    steps: Sequence[Step],
    shape: Shape,
    nd: NdSbp,
    groups: Groups,
    why: str = "",
    *,
    is_own: bool = False,
) -> LocalFn:
    """A function that takes a rank's part of a tensor of global `shape` from `nd` through `steps`.

    It must be called by all ranks in the same order. No steps: the identity. All of it runs beside
    computation, copies before and after a collective too: in the queue of computation they would
    hold up, until the tensor is there, what does not need it.

    why:    what it is for, which a job that is lost says of its last collective
    is_own: nobody else reads the tensors that it is given, which sums may overwrite
    """
    functions: list[LocalFn] = []
    own = {"all_reduce": partial(_all_reduce, is_own=is_own)}
    ways = {**WAYS, **own, **groups.ways}
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
        return unchanged
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


def unchanged(x: Tensor) -> Tensor:
    """No steps."""
    return x


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


def _all_reduce(
    step: Step, shape: Shape, nd: NdSbp, groups: Groups, is_own: bool = False
) -> LocalFn:
    return partial(groups.along(step.axes).all_reduce, is_own=is_own)


def _all_gather(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group, dim = groups.along(step.axes), step.source.dim
    sizes = _sizes(shape, nd, group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        pieces = _pieces(x.shape, dim, sizes)
        room = max(map(math.prod, pieces))
        flat = group.all_gather(_laid_out(backend, x, 0, [tuple(x.shape)], [room]))
        return _joined(backend, flat, dim, pieces, [room] * group.size)

    return run


def _reduce_scatter(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group, dim = groups.along(step.axes), step.target.dim
    sizes = _sizes(shape, step.apply(nd), group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        pieces = _pieces(x.shape, dim, sizes)
        rooms = [max(map(math.prod, pieces))] * group.size
        piece = group.reduce_scatter(_laid_out(backend, x, dim, pieces, rooms))
        return _beginning(backend, piece, pieces[group.index])

    return run


def _balanced_gather(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Unequal pieces are made equal, then gathered (`sbp.work`)."""
    group, dim = groups.along(step.axes), step.source.dim
    sizes = _sizes(shape, nd, group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        rest = (*x.shape[:dim], *x.shape[dim + 1 :])
        evening = Evening(tuple(n * math.prod(rest) for n in sizes))
        every = group.all_gather(group.make_equal(_to_front(backend, x, dim).reshape(-1), evening))
        places = [place for n in range(group.size) for place in evening.places(n)]
        whole = backend.cat([backend.narrow(every, 0, *place) for place in places], 0)
        del every
        return _from_front(backend, whole.reshape((sum(sizes), *rest)), dim)

    return run


def _balanced_scatter(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Reduced in equal parts, of which the unequal pieces are then made."""
    group, dim = groups.along(step.axes), step.target.dim
    sizes = _sizes(shape, step.apply(nd), group, groups, dim)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        rest = (*x.shape[:dim], *x.shape[dim + 1 :])
        evening = Evening(tuple(n * math.prod(rest) for n in sizes))
        part = group.reduce_scatter(
            _in_parts(backend, _to_front(backend, x, dim).reshape(-1), evening)
        )
        piece = group.make_unequal(part, evening)
        del part
        return _from_front(backend, piece.reshape((sizes[group.index], *rest)), dim)

    return run


def _in_parts(backend: Backend, flat: Tensor, evening: Evening) -> Tensor:
    """The pieces in `flat`, one after the other, as equal parts of all devices."""
    order, at = [], 0
    for place, size in (p for n in range(len(evening.sizes)) for p in evening.places(n)):
        order += [(place, backend.narrow(flat, 0, at, size))] if size else []
        at += size
    parts, end = [], 0
    for place, part in sorted(order, key=lambda item: item[0]):
        parts += [backend.zeros((place - end,), dtype_of(flat))] if place > end else []
        parts.append(part)
        end = place + int(part.shape[0])
    missing = evening.part * len(evening.sizes) - end
    parts += [backend.zeros((missing,), dtype_of(flat))] if missing else []
    return backend.cat(parts, 0)


def _all_to_all(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """Cut one dim into pieces, one for each rank, and join the pieces got along another."""
    group, cut, joined = groups.along(step.axes), step.target.dim, step.source.dim
    assert cut != joined
    cut_sizes = _sizes(shape, step.apply(nd), group, groups, cut)
    joined_sizes = _sizes(shape, nd, group, groups, joined)
    backend = group.backend

    def run(x: Tensor) -> Tensor:
        given = _pieces(x.shape, cut, cut_sizes)
        got = _pieces(given[group.index], joined, joined_sizes)
        # a pair's are of equal size where both dims are cut by the same shares
        rooms = [max(math.prod(a), math.prod(b)) for a, b in zip(given, got, strict=True)]
        flat = group.all_to_all(_laid_out(backend, x, cut, given, rooms), rooms)
        return _joined(backend, flat, joined, got, rooms)

    return run


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
        return backend.cat([part for part in parts if part.shape[dim]] or [x], dim)

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


def _pieces(shape: Sequence[int], dim: int, sizes: Sequence[int]) -> list[Shape]:
    """The shapes of the pieces of `sizes` along `dim`."""
    return [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]


def _laid_out(
    backend: Backend, x: Tensor, dim: int, pieces: Sequence[Shape], rooms: Sequence[int]
) -> Tensor:
    """The pieces of `x` along `dim` one after the other in a flat tensor, each in its own room.

    Pieces that lie so in `x` are no copy.
    """
    sizes = [math.prod(piece) for piece in pieces]
    if sizes == list(rooms) and sum(sizes):
        if dim == 0:
            return x.reshape(-1)
        if len({*pieces}) == 1:
            cut = x.reshape((*x.shape[:dim], len(pieces), *pieces[0][dim:]))
            others = (d for d in range(cut.ndim) if d != dim)
            return backend.contiguous(backend.permute(cut, (dim, *others))).reshape(-1)
    flat = backend.zeros((sum(rooms),), dtype_of(x))
    start = at = 0
    for piece, size, room in zip(pieces, sizes, rooms, strict=True):
        if size:
            part = backend.narrow(x, dim, start, piece[dim])
            backend.write(backend.narrow(flat, 0, at, size).reshape(piece), part)
        start, at = start + piece[dim], at + room
    return flat


def _joined(
    backend: Backend, flat: Tensor, dim: int, pieces: Sequence[Shape], rooms: Sequence[int]
) -> Tensor:
    """The inverse of `_laid_out`."""
    whole = (*pieces[0][:dim], sum(piece[dim] for piece in pieces), *pieces[0][dim + 1 :])
    sizes = [math.prod(piece) for piece in pieces]
    if not sum(sizes):
        return backend.zeros(whole, dtype_of(flat))
    if sizes == list(rooms):
        if dim == 0:
            return flat.reshape(whole)
        if len({*pieces}) == 1:
            order = (*range(1, dim + 1), 0, *range(dim + 1, len(whole) + 1))
            stacked = backend.permute(flat.reshape((len(pieces), *pieces[0])), order)
            return backend.contiguous(stacked).reshape(whole)  # OneFlow's reshape copies twice
    starts = itertools.accumulate(rooms, initial=0)
    parts = [
        backend.narrow(flat, 0, at, size).reshape(piece)
        for at, size, piece in zip(starts, sizes, pieces, strict=False)
        if size
    ]
    return backend.cat(parts, dim)


def _beginning(backend: Backend, flat: Tensor, piece: Shape) -> Tensor:
    """The tensor at the beginning of a flat one, by itself if there is more behind it."""
    size = math.prod(piece)
    if size == flat.shape[0]:
        return flat.reshape(piece)
    part = backend.zeros(piece, dtype_of(flat))
    if size:
        backend.write(part, backend.narrow(flat, 0, 0, size).reshape(piece))
    return part


def _zeros(backend: Backend, x: Tensor, dim: int, size: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = size
    return backend.zeros(tuple(shape), dtype_of(x))
