"""Convolutions and transposed convolutions."""

import itertools
from typing import Any

import autograd.numpy as np

from autoddl.sbp.layout import TensorSpec

from .case import Arg, Case, case, f, out
from .reference import op


def conv_case(name: str, x: Arg, w: Arg, o: TensorSpec, kind="conv2d", **changes: Any) -> Case:
    n = len(x.spec.shape) - 2
    attrs = {
        "data_format": "channels_first", "dilation_rate": (1,) * n, "filters": w.spec.shape[0],
        "groups": 1, "kernel_size": w.spec.shape[2:], "padding_before": (0,) * n,
        "strides": (1,) * n,
    }  # fmt: skip
    return case(name, kind, (x, w), o, **{**attrs, **changes})


def transposed_case(
    name: str, x: Arg, w: Arg, o: TensorSpec, kind="deconv2d", **changes: Any
) -> Case:
    n = len(x.spec.shape) - 2
    filters = w.spec.shape[1] * changes.get("groups", 1)
    changes = {"filters": filters, "output_padding": (0,) * n, **changes}
    return conv_case(name, x, w, o, kind, **changes)


CASES = (
    conv_case("padded", f(4, 6, 5, 3), f(12, 6, 3, 3), out(4, 12, 5, 3), padding_before=(1, 1)),
    conv_case("strided", f(4, 6, 7, 7), f(2, 6, 3, 3), out(4, 2, 3, 3), strides=(2, 2)),
    conv_case("dilated", f(2, 4, 7, 7), f(6, 4, 3, 3), out(2, 6, 3, 3), dilation_rate=(2, 2)),
    conv_case("groups", f(2, 12, 5, 5), f(24, 3, 3, 3), out(2, 24, 3, 3), groups=4),
    conv_case("depthwise", f(2, 12, 5, 5), f(12, 1, 3, 3), out(2, 12, 3, 3), groups=12),
    conv_case("channels_last", f(4, 5, 5, 6), f(12, 3, 3, 6), out(4, 3, 3, 12),
              data_format="channels_last", kernel_size=(3, 3)),
    conv_case("", f(4, 6, 9), f(12, 6, 3), out(4, 12, 7), kind="conv1d"),
    conv_case("", f(2, 6, 3, 3, 3), f(4, 6, 2, 2, 2), out(2, 4, 2, 2, 2), kind="conv3d"),
    transposed_case("padded", f(4, 6, 5, 3), f(6, 12, 3, 3), out(4, 12, 5, 3),
                    padding_before=(1, 1)),
    transposed_case("strided", f(4, 6, 3, 3), f(6, 2, 3, 3), out(4, 2, 8, 8),
                    strides=(2, 2), output_padding=(1, 1)),
    transposed_case("dilated", f(2, 4, 3, 3), f(4, 6, 3, 3), out(2, 6, 7, 7),
                    dilation_rate=(2, 2)),
    transposed_case("groups", f(2, 12, 3, 3), f(12, 2, 3, 3), out(2, 8, 5, 5), groups=4),
    transposed_case("channels_last", f(4, 3, 3, 6), f(6, 3, 3, 3), out(4, 5, 5, 3),
                    data_format="channels_last"),
    transposed_case("", f(4, 6, 7), f(6, 12, 3), out(4, 12, 9), kind="deconv1d"),
    transposed_case("", f(2, 6, 2, 2, 2), f(6, 4, 2, 2, 2), out(2, 4, 3, 3, 3), kind="deconv3d"),
)  # fmt: skip


def pad_window(x, padding, value):
    widths = [(0, 0)] * (x.ndim - len(padding)) + [(p, p) for p in padding]
    return np.pad(x, widths, mode="constant", constant_values=value)


def windows(x, kernel, stride, dilation):
    """[taps, n, c, ...]: for each tap of the kernel the elements of x that it meets."""
    spatial = x.shape[2:]
    size = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(spatial, kernel, stride, dilation, strict=True)
    ]
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        cut = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, size, stride, strict=True)
        ]
        taps.append(x[(slice(None), slice(None), *cut)])
    return np.stack(taps)


@op("conv1d", "conv2d", "conv3d")
def _conv(inputs, attrs, shard):
    x, w = inputs
    last = attrs["data_format"] == "channels_last"
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    assert w.shape[0] == attrs["filters"]
    groups, kernel_size = attrs["groups"], attrs["kernel_size"]
    x = pad_window(x, attrs["padding_before"], 0.0)
    met = windows(x, kernel_size, attrs["strides"], attrs["dilation_rate"])
    size = met.shape[3:]
    met = met.reshape((len(met), x.shape[0], groups, x.shape[1] // groups, -1))
    w = w.reshape((groups, w.shape[0] // groups, w.shape[1], -1))
    y = np.einsum("tngcs,gfct->ngfs", met, w).reshape((x.shape[0], -1, *size))
    return (np.moveaxis(y, 1, -1) if last else y,)


@op("deconv1d", "deconv2d", "deconv3d")
def _transposed_conv(inputs, attrs, shard):
    x, w = inputs
    last = attrs["data_format"] == "channels_last"
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    groups = attrs["groups"]
    assert w.shape[1] * groups == attrs["filters"]
    x = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    w = w.reshape((groups, w.shape[0] // groups, *w.shape[1:]))
    window = range(len(attrs["kernel_size"]))
    meets = [_lands(x.shape[3 + d], *(attrs[name][d] for name in _TRANSPOSED)) for d in window]
    into, taps, onto = "abd"[: len(window)], "ijk"[: len(window)], "xyz"[: len(window)]
    y, dims = np.einsum(f"ngc{into},gcf{taps}->ngf{into}{taps}", x, w), into + taps
    for a, i, o, meet in zip(into, taps, onto, meets, strict=True):
        rest = dims.replace(a, "").replace(i, "") + o
        y, dims = np.einsum(f"ngf{dims},{a}{i}{o}->ngf{rest}", y, meet), rest
    y = y.reshape((y.shape[0], -1, *y.shape[3:]))
    return (np.moveaxis(y, 1, -1) if last else y,)


_TRANSPOSED = ("kernel_size", "strides", "dilation_rate", "padding_before", "output_padding")


def _lands(size, kernel, stride, dilation, padding, added):
    """[element, tap, element of the output] 1 where the tap puts the element."""
    at = np.arange(size)[:, None] * stride + np.arange(kernel) * dilation - padding
    length = (size - 1) * stride + dilation * (kernel - 1) + 1 + added - 2 * padding
    return (at[:, :, None] == np.arange(length)).astype(float)
