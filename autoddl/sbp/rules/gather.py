"""Lookups in a table: its columns, the indices, or the looked-up dim itself are split.

A device that holds some rows of the table subtracts the first one's number (the offset of its
shard) from the indices and gives 0 for those outside its range; the output is a sum over devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..signature import OpSpec, Signature, rule
from .build import dims_of, labelled


@rule("gather", heavy=True)
def gather(op: OpSpec) -> Iterator[Signature]:
    """(table, indices) -> out: dim `axis` of the table gives way to the dims of the indices."""
    table, indices = dims_of(op.inputs[0].shape), dims_of(op.inputs[1].shape)
    axis = op.attrs["axis"] % len(table)
    labels = tuple(f"t{d}" for d in table)
    found = tuple(f"i{d}" for d in indices)
    out = (*labels[:axis], *found, *labels[axis + 1 :])
    yield from labelled(op, (labels, found), (out,), linear=((0,),))


@rule("embedding", heavy=True)
def embedding(op: OpSpec) -> Iterator[Signature]:
    """(weight [v, h], indices) -> out [..., h], with a padding row that gets no gradient.

    Gradients scaled by frequency count every occurrence, so the indices then stay whole.
    """
    found = dims_of(op.inputs[1].shape)
    if op.attrs.get("scale_grad_by_freq"):
        found = (None,) * len(found)
    yield from labelled(op, ((None, "h"), found), ((*found, "h"),), linear=((0,),))


@rule("gather_nd")
def gather_nd(op: OpSpec) -> Iterator[Signature]:
    """(params, indices [..., k]) -> out: an index picks from the first k dims, which stay whole."""
    params, indices = op.inputs[0].shape, op.inputs[1].shape
    depth = indices[-1]
    found = tuple(f"i{d}" for d in range(len(indices) - 1))
    rest = tuple(f"p{d}" for d in range(depth, len(params)))
    yield from labelled(
        op, ((*(None,) * depth, *rest), (*found, None)), ((*found, *rest),), linear=((0,),)
    )


@rule("dim_gather")
def dim_gather(op: OpSpec) -> Iterator[Signature]:
    """(input, index) -> output of the index's shape; picks along `dim`.

    Other dims run together, unless the index covers only a part of the input there.
    """
    shape, index = op.inputs[0].shape, op.inputs[1].shape
    dim = op.attrs["dim"] % len(index)
    shared = [d if d != dim and n == index[d] else None for d, n in enumerate(shape)]
    picked = [*shared]
    picked[dim] = dim
    yield from labelled(op, (shared, picked), (picked,), linear=((0,),))


@rule("one_hot")
def one_hot(op: OpSpec) -> Iterator[Signature]:
    """indices -> out [..., depth]."""
    found = dims_of(op.inputs[0].shape)
    yield from labelled(op, (found,), ((*found, None),))
