"""Pooling, resizing and padding: each image and channel is handled by itself."""

from __future__ import annotations

from collections.abc import Iterator

from ..signature import OpSpec, Signature, rule
from .build import dims_of, drop, labelled

_WINDOW_DIMS = {"1d": 1, "2d": 2, "3d": 3}


def _window(op: OpSpec) -> tuple[int, ...]:
    """The dims that a window covers: the last ones, or those before the channels."""
    ndim, count = len(op.inputs[0].shape), _WINDOW_DIMS[op.kind[-2:]]
    last = op.attrs.get("data_format", "channels_first") == "channels_last"
    stop = ndim - 1 if last else ndim
    return tuple(range(stop - count, stop))


def _flops(op: OpSpec) -> float:
    kernel = op.attrs.get("kernel_size")
    if not kernel:
        return float(op.inputs[0].numel)
    taps = 1
    for size in kernel:
        taps *= size
    return float(op.outputs[0].numel * taps)


@rule(
    *(f"max_pool_{n}d" for n in (1, 2, 3)),
    *(f"adaptive_max_pool{n}d" for n in (1, 2, 3)),
    flops=_flops,
)
def max_pool(op: OpSpec) -> Iterator[Signature]:
    """x -> y; all dims but the window's may be split."""
    labels = drop(dims_of(op.inputs[0].shape), *_window(op))
    yield from labelled(op, (labels,), (labels,))


@rule(
    *(f"avg_pool_{n}d" for n in (1, 2, 3)),
    *(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)),
    "upsample_nearest_2d",
    "upsample_bilinear_2d",
    flops=_flops,
)
def linear_pool(op: OpSpec) -> Iterator[Signature]:
    """x -> y, linear in x; all dims but the window's may be split."""
    labels = drop(dims_of(op.inputs[0].shape), *_window(op))
    yield from labelled(op, (labels,), (labels,), linear=((0,),))


@rule("pad")
def pad(op: OpSpec) -> Iterator[Signature]:
    """x -> y; dims that get no padding may be split; linear if the padding is zero."""
    before, after = op.attrs["padding_before"], op.attrs["padding_after"]
    padded = [d for d, both in enumerate(zip(before, after, strict=True)) if any(both)]
    labels = drop(dims_of(op.inputs[0].shape), *padded)
    linear = () if op.attrs.get("floating_constant_value", 0.0) else ((0,),)
    yield from labelled(op, (labels,), (labels,), linear=linear)
