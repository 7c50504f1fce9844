"""Lookups in a table and their inverse: columns, indices, or the looked-up dim are split.

A device that holds some rows of the table subtracts its first row's number (the offset of its
shard) from the indices, and gives 0 for indices outside its range; the output is the sum over
devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..placement import P, S
from ..signature import OpSpec, Signature, rule
from .build import dims_of, labelled, natural, shape_of_shard


def _rows(op: OpSpec) -> int:
    """Of the table that is looked up."""
    return op.inputs[0].shape[op.attrs.get("axis", 0)]


def _loops(op: OpSpec) -> tuple[Sequence[str], str]:
    before = op.attrs.get("axis", 0) % len(op.inputs[0].shape)
    found = ("rows",) * len(op.inputs[1].shape)
    after = ("out",) * (len(op.inputs[0].shape) - before - 1)
    return (*("out",) * before, *found, *after), "vocabulary"


@rule("gather", heavy=True, loops=_loops, saves="x1", index_limit=_rows)
def gather(op: OpSpec) -> Iterator[Signature]:
    """(table, indices) -> out: dim `axis` of the table gives way to the dims of the indices."""
    table, indices = dims_of(op.inputs[0].shape), dims_of(op.inputs[1].shape)
    axis = op.attrs["axis"] % len(table)
    labels = tuple(f"t{d}" for d in table)
    found = tuple(f"i{d}" for d in indices)
    out = (*labels[:axis], *found, *labels[axis + 1 :])
    yield from labelled(op, (labels, found), (out,), linear=((0,),))


@rule("embedding", heavy=True, loops=_loops, saves="x1", index_limit=_rows)
def embedding(op: OpSpec) -> Iterator[Signature]:
    """(weight [v, h], indices) -> out [..., h], with a padding row that gets no gradient.

    Gradients scaled by frequency count every occurrence, so the indices then stay whole.
    """
    found = dims_of(op.inputs[1].shape)
    if op.attrs.get("scale_grad_by_freq"):
        found = (None,) * len(found)
    yield from labelled(op, ((None, "h"), found), ((*found, "h"),), linear=((0,),))


@rule("gather_nd", saves="all")
def gather_nd(op: OpSpec) -> Iterator[Signature]:
    """(params, indices [..., k]) -> out: an index picks from the first k dims, which stay whole."""
    params, indices = op.inputs[0].shape, op.inputs[1].shape
    depth = indices[-1]
    found = tuple(f"i{d}" for d in range(len(indices) - 1))
    rest = tuple(f"p{d}" for d in range(depth, len(params)))
    yield from labelled(
        op, ((*(None,) * depth, *rest), (*found, None)), ((*found, *rest),), linear=((0,),)
    )


@rule("dim_gather", saves="all")
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


@rule("one_hot", saves="")
def one_hot(op: OpSpec) -> Iterator[Signature]:
    """indices -> out [..., depth]."""
    found = dims_of(op.inputs[0].shape)
    yield from labelled(op, (found,), ((*found, None),))


@rule("batch_gather", saves="all")
def batch_gather(op: OpSpec) -> Iterator[Signature]:
    """(in [rows..., k, rest...], indices [rows..., m]) -> out [rows..., m, rest...]."""
    rows = dims_of(op.inputs[1].shape)[:-1]
    rest = tuple(f"r{d}" for d in range(len(rows) + 1, len(op.inputs[0].shape)))
    ins = ((*rows, None, *rest), (*rows, "m"))
    yield from labelled(op, ins, ((*rows, "m", *rest),), linear=((0,),))


@rule("searchsorted", saves="")
def searchsorted(op: OpSpec) -> Iterator[Signature]:
    """(borders [rows..., k] or [k], values [rows..., m]) -> out: where each value belongs."""
    borders, values = op.inputs[0].shape, dims_of(op.inputs[1].shape)
    rows = values[: len(borders) - 1]
    yield from labelled(op, ((*rows, None), values), (values,))


@rule("in_top_k", saves="")
def in_top_k(op: OpSpec) -> Iterator[Signature]:
    """(targets [n], predictions [n, c]) -> out [n]."""
    yield from labelled(op, (("n",), ("n", None)), (("n",),))


def _together(op: OpSpec) -> list[int | None]:
    """Labels of the dims, but `dim`, of which index and source cover the input's whole."""
    dim = op.attrs["dim"] % len(op.inputs[0].shape)
    sizes = zip(*(t.shape for t in op.inputs), strict=True)
    return [d if d != dim and len(set(n)) == 1 else None for d, n in enumerate(sizes)]


@rule("dim_scatter_update", "dim_scatter_update_scalar", saves="x1")
def dim_scatter_update(op: OpSpec) -> Iterator[Signature]:
    """(input, index, src?) -> input with src, or a scalar, at the index along `dim`."""
    labels = _together(op)
    zero = op.attrs.get("src_scalar") == 0
    linear = ((0, 2),) if len(op.inputs) > 2 else ((0,),) if zero else ()
    yield from labelled(op, (labels,) * len(op.inputs), (labels,), linear=linear)


@rule("dim_scatter_add", saves="x1")
def dim_scatter_add(op: OpSpec) -> Iterator[Signature]:
    """(input, index, src) -> input plus src at the index along `dim`.

    Each device may add a part of src, to a summand of the input.
    """
    labels = _together(op)
    yield from labelled(op, (labels,) * 3, (labels,), linear=((0, 2),))
    dim = op.attrs["dim"] % len(labels)
    if op.inputs[0].is_float and op.inputs[1].shape[dim] == op.inputs[2].shape[dim]:
        yield natural(op, (P, S(dim), S(dim)), (P,))


@rule("scatter_nd", local_attrs=shape_of_shard, saves="all")
def scatter_nd(op: OpSpec) -> Iterator[Signature]:
    """(indices [..., k], updates [..., rest...]) -> out, zero but for the sums of updates."""
    found = dims_of(op.inputs[0].shape)[:-1]
    rest = tuple(f"r{d}" for d in range(len(found), len(op.inputs[1].shape)))
    whole = (None,) * (len(op.outputs[0].shape) - len(rest))
    ins = ((*found, None), (*found, *rest))
    yield from labelled(op, ins, ((*whole, *rest),), linear=((1,),))


@rule("tensor_scatter_nd_update", saves="x1")
def tensor_scatter_nd_update(op: OpSpec) -> Iterator[Signature]:
    """(tensor, indices [..., k], updates [..., rest...]) -> tensor with the updates in place."""
    found = (None,) * (len(op.inputs[1].shape) - 1)
    rest = tuple(f"r{d}" for d in range(len(found), len(op.inputs[2].shape)))
    tensor = (*(None,) * (len(op.inputs[0].shape) - len(rest)), *rest)
    ins = (tensor, (*found, None), (*found, *rest))
    yield from labelled(op, ins, (tensor,), linear=((0, 2),))
