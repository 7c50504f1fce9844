"""Convolutions and transposed convolutions."""

import autograd.numpy as np

from .registry import op
from .windows import pad_window, windows


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
