"""The steps of a redistribution on real processes.

    prepare(steps, shape, nd, groups) -> run;    run(local tensor placed as nd) -> local tensor

A step's geometry (pieces, permutations) is worked out once, in `prepare`, and applied to each
tensor. Dims that a collective concatenates or cuts are brought to the front and flattened, so that
the buffers hold the pieces of the ranks one after the other and nothing but these pieces travels.
Pieces of unequal size are padded to the largest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import oneflow as flow

from ...sbp.layout import Shape, local_slices
from ...sbp.placement import NdSbp
from ...sbp.steps import Step
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
        front = _fill_up(_to_front(x, dim), 0, largest)
        gathered = group.all_gather(front.reshape(-1))
        rows = gathered.reshape(group.size * largest, *front.shape[1:])
        return _from_front(_drop_padding(rows, 0, sizes), dim)

    return run


def _reduce_scatter(group: Group, dim: int, sizes: list[int]) -> LocalFn:
    def run(x: flow.Tensor) -> flow.Tensor:
        front = _pad_pieces(_to_front(x, dim), 0, sizes)
        piece = group.reduce_scatter(front.reshape(-1)).reshape(max(sizes), *front.shape[1:])
        return _from_front(_head(piece, 0, sizes[group.index]), dim)

    return run


def _all_to_all(
    group: Group, cut: int, cut_sizes: list[int], joined: int, joined_sizes: list[int]
) -> LocalFn:
    """Cut dim `cut` into pieces, one for each rank, and join the pieces got along dim `joined`."""
    assert cut != joined

    def run(x: flow.Tensor) -> flow.Tensor:
        front = _pad_pieces(_to_front(x, cut), 0, cut_sizes)
        front = _fill_up(front, joined + 1 if joined < cut else joined, max(joined_sizes))
        got = group.all_to_all(front.reshape(group.size, -1))
        blocks = got.reshape(group.size, max(cut_sizes), *front.shape[1:])
        # dims of the blocks: source rank, `cut`, the others; `cut` goes back to its place and
        # the rank right before `joined`
        order = list(range(1, blocks.ndim))
        order = [*order[1 : cut + 1], 1, *order[cut + 1 :]]
        order.insert(joined, 0)
        blocks = blocks.permute(*order)
        shape = list(blocks.shape)
        shape[joined : joined + 2] = [shape[joined] * shape[joined + 1]]
        whole = _drop_padding(blocks.reshape(*shape), joined, joined_sizes)
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


def _to_front(x: flow.Tensor, dim: int) -> flow.Tensor:
    if dim == 0:
        return x
    return x.permute(dim, *(d for d in range(x.ndim) if d != dim)).contiguous()


def _from_front(x: flow.Tensor, dim: int) -> flow.Tensor:
    if dim == 0:
        return x
    return x.permute(*range(1, dim + 1), 0, *range(dim + 1, x.ndim)).contiguous()


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
