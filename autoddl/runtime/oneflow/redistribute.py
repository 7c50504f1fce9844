"""The steps of a redistribution on real processes.

    prepare(steps, shape, nd, groups) -> run;    run(local tensor placed as nd) -> local tensor

A step's geometry (pieces, permutations) is worked out once, in `prepare`, and applied to each
tensor. A dim that a collective cuts or joins becomes two, the rank's number and the piece, and the
number alone is brought to the front or taken from there: the buffers hold the pieces of the ranks
one after the other, nothing but these pieces travels, and long runs stay together (OneFlow's CPU
copies a whole transpose 20 times slower). Pieces of unequal size are padded to the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import oneflow as flow

from ...sbp.collectives import Step
from ...sbp.layout import Shape, local_slices
from ...sbp.placement import NdSbp
from .groups import Group, Groups

LocalFn = Callable[[flow.Tensor], flow.Tensor]


def prepare(steps: Sequence[Step], shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    """A function that takes a rank's part of a tensor of global `shape` from `nd` through `steps`.

    It must be called by all ranks in the same order. No steps: the identity.
    """
    functions: list[LocalFn] = []
    for step in steps:
        functions.append(_prepare_step(step, shape, nd, groups))
        nd = step.apply(nd)
    if not functions:
        return lambda x: x
    if len(functions) == 1:
        return functions[0]

    def run(x: flow.Tensor) -> flow.Tensor:
        for function in functions:
            x = function(x)
        return x

    return run


def _prepare_step(step: Step, shape: Shape, nd: NdSbp, groups: Groups) -> LocalFn:
    group = groups.along(step.axes)
    after = step.apply(nd)
    if step.kind == "all_reduce":
        return group.all_reduce
    if step.kind == "all_gather":
        dim = step.source.dim
        return _all_gather(group, dim, _sizes(shape, nd, group, groups, dim))
    if step.kind == "reduce_scatter":
        dim = step.target.dim
        return _reduce_scatter(group, dim, _sizes(shape, after, group, groups, dim))
    if step.kind == "all_to_all":
        cut, joined = step.target.dim, step.source.dim
        return _all_to_all(
            group,
            cut,
            _sizes(shape, after, group, groups, cut),
            joined,
            _sizes(shape, nd, group, groups, joined),
        )
    if step.kind == "slice":
        dim = step.target.dim
        return _slice(group, dim, _sizes(shape, after, group, groups, dim))
    if step.source.is_broadcast:
        return _keep_on_first(group)
    dim = step.source.dim
    return _surround_with_zeros(group, dim, _sizes(shape, nd, group, groups, dim))


def _sizes(shape: Shape, nd: NdSbp, group: Group, groups: Groups, dim: int) -> list[int]:
    """The sizes along `dim` of the pieces of the group's ranks, which follow one another."""
    pieces = [local_slices(shape, nd, groups.mesh, rank)[dim] for rank in group.ranks]
    assert all(a.stop == b.start for a, b in itertools.pairwise(pieces)), (
        f"the pieces of dim {dim} under {nd} do not follow one another in the group {group.ranks}"
    )
    return [piece.stop - piece.start for piece in pieces]


def _all_gather(group: Group, dim: int, sizes: list[int]) -> LocalFn:
    largest = max(sizes)

    def run(x: flow.Tensor) -> flow.Tensor:
        piece = _fill_up(x, dim, largest)
        pieces = group.all_gather(piece.reshape(-1)).reshape(group.size, *piece.shape)
        return _drop_padding(_join(pieces, dim), dim, sizes)

    return run


def _reduce_scatter(group: Group, dim: int, sizes: list[int]) -> LocalFn:
    def run(x: flow.Tensor) -> flow.Tensor:
        pieces = _cut(_pad_pieces(x, dim, sizes), dim, group.size)
        piece = group.reduce_scatter(pieces.reshape(-1)).reshape(*pieces.shape[1:])
        return _head(piece, dim, sizes[group.index])

    return run


def _all_to_all(
    group: Group, cut: int, cut_sizes: list[int], joined: int, joined_sizes: list[int]
) -> LocalFn:
    """Cut dim `cut` into pieces, one for each rank, and join the pieces got along dim `joined`."""
    assert cut != joined

    def run(x: flow.Tensor) -> flow.Tensor:
        padded = _fill_up(_pad_pieces(x, cut, cut_sizes), joined, max(joined_sizes))
        pieces = _cut(padded, cut, group.size)
        got = group.all_to_all(pieces.reshape(group.size, -1)).reshape(*pieces.shape)
        whole = _drop_padding(_join(got, joined), joined, joined_sizes)
        return _head(whole, cut, cut_sizes[group.index])

    return run


def _slice(group: Group, dim: int, sizes: list[int]) -> LocalFn:
    start, length = sum(sizes[: group.index]), sizes[group.index]
    return lambda x: x.narrow(dim, start, length).contiguous()


def _keep_on_first(group: Group) -> LocalFn:
    return (lambda x: x) if group.index == 0 else flow.zeros_like


def _surround_with_zeros(group: Group, dim: int, sizes: list[int]) -> LocalFn:
    before, after = sum(sizes[: group.index]), sum(sizes[group.index + 1 :])

    def run(x: flow.Tensor) -> flow.Tensor:
        parts = [_zeros(x, dim, before), x, _zeros(x, dim, after)]
        return flow.cat([part for part in parts if part.shape[dim]], dim=dim)

    return run


def _cut(x: flow.Tensor, dim: int, count: int) -> flow.Tensor:
    """`x` cut along `dim` into `count` equal pieces: [count, *piece]."""
    shape = [*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :]]
    pieces = x.reshape(*shape)
    if dim == 0:
        return pieces
    others = (d for d in range(pieces.ndim) if d != dim)
    return pieces.permute(dim, *others).contiguous()


def _join(pieces: flow.Tensor, dim: int) -> flow.Tensor:
    """The inverse of `_cut`: pieces [count, *piece] one after the other along `dim`."""
    if dim:
        pieces = pieces.permute(*range(1, dim + 1), 0, *range(dim + 1, pieces.ndim))
    shape = list(pieces.shape)
    shape[dim : dim + 2] = [shape[dim] * shape[dim + 1]]
    return pieces.reshape(*shape)


def _zeros(x: flow.Tensor, dim: int, size: int) -> flow.Tensor:
    shape = list(x.shape)
    shape[dim] = size
    return flow.zeros(*shape, dtype=x.dtype, device=x.device)


def _fill_up(x: flow.Tensor, dim: int, size: int) -> flow.Tensor:
    """`x` with zeros behind it along `dim`, up to `size`."""
    if x.shape[dim] == 0:
        return _zeros(x, dim, size)
    missing = size - x.shape[dim]
    return flow.cat([x, _zeros(x, dim, missing)], dim=dim) if missing else x


def _head(x: flow.Tensor, dim: int, size: int) -> flow.Tensor:
    """The first `size` of dim `dim`."""
    return x if x.shape[dim] == size else x.narrow(dim, 0, size).contiguous()


def _pad_pieces(x: flow.Tensor, dim: int, sizes: list[int]) -> flow.Tensor:
    """Cut dim `dim` into pieces of `sizes` and fill each up to the largest."""
    largest = max(sizes)
    if min(sizes) == largest:
        return x
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pieces = [x.narrow(dim, at, n) for at, n in zip(starts, sizes, strict=True)]
    return flow.cat([_fill_up(piece, dim, largest) for piece in pieces], dim=dim)


def _drop_padding(x: flow.Tensor, dim: int, sizes: list[int]) -> flow.Tensor:
    """The inverse of `_pad_pieces`."""
    largest = max(sizes)
    if min(sizes) == largest:
        return x
    pieces = [x.narrow(dim, i * largest, n) for i, n in enumerate(sizes) if n]
    return flow.cat(pieces, dim=dim)
