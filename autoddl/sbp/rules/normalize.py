"""Normalisation. Statistics over a split dim are all-reduced: means first, then centred squares.

    forward    mean = all_reduce(sum x) / n;  var = all_reduce(sum (x - mean)^2) / n
    backward   all_reduce(sum g) and all_reduce(sum g xhat), g = dy gamma

BatchNorm over a split batch therefore has the statistics of the whole batch, and updates the
running ones identically on every device. With the attribute `statistics` "shard" it takes those of
the device's rows and communicates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..signature import Inner, OpSpec, Signature, rule
from .build import dims_of, drop, inner_split, labelled, replicated, splits

# per element: sum, subtract, square, sum, scale, shift
FLOPS_PER_ELEMENT = 6.0


def _flops(op: OpSpec) -> float:
    return FLOPS_PER_ELEMENT * op.inputs[0].numel


@rule("normalization", flops=_flops, saves="all", nonlinear=True)
def normalization(op: OpSpec) -> Iterator[Signature]:
    """(x, moving_mean, moving_variance, gamma, beta) -> y, BatchNorm; channels are dim `axis`.

    The moving statistics may be absent (then x, gamma, beta); they have no gradient.
    """
    dims = dims_of(op.inputs[0].shape)
    channel = op.attrs["axis"] % len(dims)
    vectors = ((channel,),) * (len(op.inputs) - 1)
    moving = range(1, len(op.inputs) - 2)
    if not op.attrs["training"]:
        yield from labelled(op, (dims, *vectors), (dims,), frozen_ins=moving)
        return
    reduced = tuple(d for d in dims if d != channel)
    if op.attrs.get("statistics") == "shard":
        labels = drop(dims, *reduced[1:])
        yield from labelled(op, (labels, *vectors), (labels,), frozen_ins=moving)
        return
    inner = Inner(0, reduced, forward=2, backward=2, room=(1.0, 3.0))
    for d in dims:
        if d == channel:
            only = drop(dims, *reduced)
            yield from splits(op, (only, *vectors), (only,), frozen_ins=moving)
        else:
            yield inner_split(op, (dims, *vectors), (dims,), d, inner, frozen_ins=moving)
    yield replicated(op, frozen_ins=moving)


def _statistics(op: OpSpec) -> tuple[float, float]:
    """Mean and inverse deviation of each row."""
    return 0.0, 2 / max(1, op.inputs[0].shape[-1])


@rule("layer_norm", flops=_flops, saves="x0 beside", beside=_statistics, nonlinear=True)
def layer_norm(op: OpSpec) -> Iterator[Signature]:
    """(x, gamma?, beta?) -> y, fused; dims from `begin_norm_axis` are normalised."""
    dims = dims_of(op.inputs[0].shape)
    begin = op.attrs["begin_norm_axis"] % len(dims)
    params = (dims[op.attrs["begin_params_axis"] % len(dims) :],) * (len(op.inputs) - 1)
    free = drop(dims, *dims[begin:])
    yield from splits(op, (free, *(drop(p, *dims[begin:]) for p in params)), (free,))
    inner = Inner(0, dims[begin:], forward=2, backward=2, room=(1.0, 3.0))
    for d in dims[begin:]:
        yield inner_split(op, (dims, *params), (dims,), d, inner)
    yield replicated(op)


@rule("rms_norm", flops=_flops, saves="all", nonlinear=True)
def rms_norm(op: OpSpec) -> Iterator[Signature]:
    """(x, weight?) -> y; the last dims, `normalized_shape`, stay whole."""
    dims = dims_of(op.inputs[0].shape)
    begin = len(dims) - len(op.attrs["normalized_shape"])
    free = drop(dims, *dims[begin:])
    weight = ((None,) * (len(dims) - begin),) * (len(op.inputs) - 1)
    yield from labelled(op, (free, *weight), (free,))


@rule("l2_normalize", flops=_flops, saves="all", nonlinear=True)
def l2_normalize(op: OpSpec) -> Iterator[Signature]:
    """x -> y; dim `axis` stays whole."""
    dims = dims_of(op.inputs[0].shape)
    free = drop(dims, op.attrs["axis"] % len(dims))
    yield from labelled(op, (free,), (free,))
