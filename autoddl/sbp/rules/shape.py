"""Operators that rearrange elements. All are linear; most are views.

Reshape: dims split into factors, or merge, in groups. In row-major order a shard stays contiguous
only if the leading dim of its group is split, so the leading dims of a group share a label.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Shape
from ..signature import Attrs, OpSpec, Signature, rule
from .build import broadcast_labels, canonical, dims_of, drop, labelled, shape_of_shard


def no_flops(op: OpSpec) -> float:
    """The FLOPs of an operator that computes nothing."""
    del op
    return 0.0


def leading_dims(source: Shape, target: Shape) -> tuple[list[int | None], list[int | None]]:
    """Labels of a reshape: the leading dim of each smallest group of equal size on both sides.

    (2, 12) -> (24,): groups (2, 12) and (24): dim 0 and dim 0 run together.
    (2, 12) -> (2, 3, 4): groups (2), (2) and (12), (3, 4): dims 0 and 0, dims 1 and 1.
    """
    ins: list[int | None] = [None] * len(source)
    outs: list[int | None] = [None] * len(target)
    if 0 in source:
        return ins, outs
    i = j = group = 0
    while True:
        while i < len(source) and source[i] == 1:
            i += 1
        while j < len(target) and target[j] == 1:
            j += 1
        if i == len(source) or j == len(target):
            return ins, outs
        ins[i] = outs[j] = group
        group += 1
        left, right = source[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * source[i], i + 1
            else:
                right, j = right * target[j], j + 1


@rule("reshape", local_attrs=shape_of_shard, flops=no_flops, view="reshape", saves="")
def reshape(op: OpSpec) -> Iterator[Signature]:
    """in -> out; attr shape is the shard's own on shards."""
    ins, outs = leading_dims(op.inputs[0].shape, op.outputs[0].shape)
    yield from labelled(op, (ins,), (outs,), linear=((0,),))


@rule("squeeze", "expand_dims", flops=no_flops, view="reshape", saves="")
def ones(op: OpSpec) -> Iterator[Signature]:
    """in -> out; dims of size 1 go or come, the others keep their order."""
    ins, outs = leading_dims(op.inputs[0].shape, op.outputs[0].shape)
    yield from labelled(op, (ins,), (outs,), linear=((0,),))


@rule("transpose", flops=no_flops, view="transpose", saves="")
def transpose(op: OpSpec) -> Iterator[Signature]:
    """input -> output; dim d of the output is dim perm[d] of the input."""
    dims = dims_of(op.inputs[0].shape)
    perm = canonical(op.attrs["perm"], len(dims)) if dims else ()
    yield from labelled(op, (dims,), (perm,), linear=((0,),))


def _local_expand(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    del ins
    return {**op.attrs, "expand_shape": outs[0]}


@rule("expand", local_attrs=_local_expand, flops=no_flops, view="expand", saves="")
def expand(op: OpSpec) -> Iterator[Signature]:
    """in -> out; expanded dims may be split as well, the input is then Broadcast."""
    out = op.outputs[0].shape
    yield from labelled(
        op, (broadcast_labels(op.inputs[0].shape, out),), (dims_of(out),), linear=((0,),)
    )


def _local_narrow(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    del ins
    return {**op.attrs, "length": outs[0][op.attrs["dim"]]}


@rule(
    "narrow", local_attrs=_local_narrow, flops=no_flops, view="narrow", saves="",
    part=frozenset({"start"}),
)  # fmt: skip
def narrow(op: OpSpec) -> Iterator[Signature]:
    """in -> out: `length` elements of dim `dim`; that dim is split only if it is taken whole."""
    yield from _of_whole_dims(op)


def _local_slice(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """Dims that are taken whole stop where the shard does."""
    part = op.inputs[1] if op.kind == "slice_update" else op.outputs[0]
    whole = _whole_dims(op.inputs[0].shape, part.shape)
    stop = (ins[0][d] if d in whole else end for d, end in enumerate(op.attrs["stop"]))
    return {**op.attrs, "stop": tuple(stop)}


@rule(
    "slice", local_attrs=_local_slice, flops=no_flops, saves="", part=frozenset({"start", "stop"})
)
def slice_(op: OpSpec) -> Iterator[Signature]:
    """x -> y; attrs start, stop, step per dim; only dims that are taken whole are split."""
    yield from _of_whole_dims(op)


@rule("slice_update", local_attrs=_local_slice, flops=no_flops, saves="")
def slice_update(op: OpSpec) -> Iterator[Signature]:
    """(ref, value) -> ref with `value` in a slice; dims that the slice takes whole are split."""
    whole = _whole_dims(op.inputs[0].shape, op.inputs[1].shape)
    labels = [d if d in whole else None for d in dims_of(op.inputs[0].shape)]
    yield from labelled(op, (labels, labels), (labels,), linear=((0, 1),))


def _whole_dims(source: Shape, target: Shape) -> tuple[int, ...]:
    return tuple(d for d, n in enumerate(source) if n == target[d])


def _of_whole_dims(op: OpSpec) -> Iterator[Signature]:
    whole = _whole_dims(op.inputs[0].shape, op.outputs[0].shape)
    labels = [d if d in whole else None for d in dims_of(op.inputs[0].shape)]
    yield from labelled(op, (labels,), (labels,), linear=((0,),))


@rule("concat", flops=no_flops, saves="")
def concat(op: OpSpec) -> Iterator[Signature]:
    """(in_0, ..., in_k) -> out along `axis`, which stays whole."""
    dims = dims_of(op.outputs[0].shape)
    labels = drop(dims, op.attrs["axis"] % len(dims))
    count = len(op.inputs)
    yield from labelled(op, (labels,) * count, (labels,), linear=(range(count),))


@rule("stack", flops=no_flops, saves="")
def stack(op: OpSpec) -> Iterator[Signature]:
    """(in_0, ..., in_k) -> out with a new dim `axis`."""
    dims = dims_of(op.inputs[0].shape)
    axis = op.attrs["axis"] % (len(dims) + 1)
    count = len(op.inputs)
    out = (*dims[:axis], None, *dims[axis:])
    yield from labelled(op, (dims,) * count, (out,), linear=(range(count),))


@rule("roll", "flip", flops=no_flops, saves="")
def roll(op: OpSpec) -> Iterator[Signature]:
    """in -> out; the moved `dims` stay whole."""
    dims = dims_of(op.inputs[0].shape)
    labels = drop(dims, *canonical(op.attrs["dims"], len(dims)))
    yield from labelled(op, (labels,), (labels,), linear=((0,),))


@rule("unfold_tensor", flops=no_flops, saves="")
def unfold_tensor(op: OpSpec) -> Iterator[Signature]:
    """x -> windows along attr `dimension`, which stays whole; their elements are a new last dim."""
    dims = dims_of(op.inputs[0].shape)
    labels = drop(dims, *canonical(op.attrs["dimension"], len(dims)))
    yield from labelled(op, (labels,), ((*labels, None),), linear=((0,),))


@rule("tril", "triu", saves="", in_place=True)
def triangle(op: OpSpec) -> Iterator[Signature]:
    """in -> out over the last two dims, which stay whole; linear if it fills with zero."""
    dims = dims_of(op.inputs[0].shape)
    labels = drop(dims, *dims[-2:])
    typed = "floating" if op.attrs.get("is_floating_fill_value") else "integer"
    fill = op.attrs.get(f"{typed}_fill_value", 0)
    yield from labelled(op, (labels,), (labels,), linear=() if fill else ((0,),))
