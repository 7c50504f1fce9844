"""Pooling, resizing, padding and patches, which treat each image and channel independently."""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Shape
from ..signature import Attrs, OpSpec, Signature, rule
from .build import dims_of, drop, labelled

_WINDOW_DIMS = {"1d": 1, "2d": 2, "3d": 3}


def _window(op: OpSpec, kind: str) -> tuple[int, ...]:
    """The dims that a window covers: the last ones, or those before the channels."""
    ndim, count = len(op.inputs[0].shape), _WINDOW_DIMS[kind[-2:]]
    last = op.attrs.get("data_format", "channels_first") == "channels_last"
    stop = ndim - 1 if last else ndim
    return tuple(range(stop - count, stop))


def _outside_window(op: OpSpec, kind: str) -> tuple[int | None, ...]:
    """Labels of the dims that a window does not cover."""
    return drop(dims_of(op.inputs[0].shape), *_window(op, kind))


def _flops(op: OpSpec) -> float:
    kernel = op.attrs.get("kernel_size")
    if not kernel:
        return float(op.inputs[0].numel)
    taps = 1
    for size in kernel:
        taps *= size
    return float(op.outputs[0].numel * taps)


def _places(op: OpSpec) -> tuple[float, float]:
    """Where each maximum was, an int64."""
    return 0.0, 8 / op.outputs[0].item_bytes


@rule(
    *(f"max_pool_{n}d" for n in (1, 2, 3)),
    *(f"adaptive_max_pool{n}d" for n in (1, 2, 3)),
    flops=_flops,
    saves="beside",
    beside=_places,
)
def max_pool(op: OpSpec) -> Iterator[Signature]:
    """x -> y; all dims but the window's may be split."""
    labels = _outside_window(op, op.kind)
    yield from labelled(op, (labels,), (labels,))


@rule(*(f"max_pool_{n}d_indices" for n in (1, 2, 3)), flops=_flops, saves="")
def max_pool_indices(op: OpSpec) -> Iterator[Signature]:
    """x -> where the maxima are in their image and channel; the window's dims stay whole."""
    labels = _outside_window(op, op.kind.removesuffix("_indices"))
    yield from labelled(op, (labels,), (labels,))


@rule(*(f"max_unpool_{n}d" for n in (1, 2, 3)), saves="all")
def max_unpool(op: OpSpec) -> Iterator[Signature]:
    """(x, indices) -> y, zero but for x at the indices."""
    labels = _outside_window(op, op.kind)
    yield from labelled(op, (labels, labels), (labels,), linear=((0,),))


@rule(
    *(f"avg_pool_{n}d" for n in (1, 2, 3)),
    *(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)),
    flops=_flops,
    saves="all",
)
@rule(
    *(f"upsample_nearest_{n}d" for n in (1, 2, 3)),
    "upsample_linear_1d",
    "upsample_bilinear_2d",
    "upsample_bicubic_2d",
    "upsample_trilinear_3d",
    *(f"{mode}_pad{n}d" for mode in ("reflection", "replication") for n in (1, 2)),
    flops=_flops,
    saves="",
)
def linear_pool(op: OpSpec) -> Iterator[Signature]:
    """x -> y, linear in x; all dims but the window's may be split."""
    labels = _outside_window(op, op.kind)
    yield from labelled(op, (labels,), (labels,), linear=((0,),))


@rule("pad", saves="")
def pad(op: OpSpec) -> Iterator[Signature]:
    """x -> y; dims that get no padding may be split; linear if the padding is zero."""
    before, after = op.attrs["padding_before"], op.attrs["padding_after"]
    padded = [d for d, both in enumerate(zip(before, after, strict=True)) if any(both)]
    labels = drop(dims_of(op.inputs[0].shape), *padded)
    linear = () if op.attrs.get("floating_constant_value", 0.0) else ((0,),)
    yield from labelled(op, (labels,), (labels,), linear=linear)


@rule("unfold", "fold", saves="")
def patches(op: OpSpec) -> Iterator[Signature]:
    """in [n, c, h, w] <-> patches [n, c * taps, places]: a part of the channels keeps its taps."""
    if op.attrs["data_format"] == "channels_last":
        labels = [("n", *(None,) * (len(t.shape) - 1)) for t in (*op.inputs, *op.outputs)]
    else:
        labels = [("n", "c", *(None,) * (len(t.shape) - 2)) for t in (*op.inputs, *op.outputs)]
    yield from labelled(op, labels[:1], labels[1:], linear=((0,),))


def _sample_flops(op: OpSpec) -> float:
    return 8.0 * op.outputs[0].numel  # four neighbours, each weighted and added


@rule("grid_sample", flops=_sample_flops, saves="all")
def grid_sample(op: OpSpec) -> Iterator[Signature]:
    """(input [n, c, ...], grid [n, places..., k]) -> out [n, c, places...], linear in the input."""
    places = tuple(range(len(op.inputs[1].shape) - 2))
    whole = (None,) * (len(op.inputs[0].shape) - 2)
    ins = (("n", "c", *whole), ("n", *places, None))
    yield from labelled(op, ins, (("n", "c", *places),), linear=((0,),))


def _local_rows(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    del outs
    return {**op.attrs, "size": (ins[0][0], *op.attrs["size"][1:])}


@rule("affine_grid", local_attrs=_local_rows, saves="")
def affine_grid(op: OpSpec) -> Iterator[Signature]:
    """theta [n, k, k + 1] -> grid [n, places..., k]."""
    whole = (None,) * (len(op.outputs[0].shape) - 1)
    yield from labelled(op, (("n", None, None),), (("n", *whole),), linear=((0,),))
