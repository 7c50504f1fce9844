"""Convolutions."""

from typing import Any

from autoddl.sbp.layout import TensorSpec

from .case import Arg, Case, case, out
from .draw import f


def conv_case(name: str, x: Arg, w: Arg, o: TensorSpec, kind="conv2d", **changes: Any) -> Case:
    n = len(x.spec.shape) - 2
    attrs = {
        "data_format": "channels_first", "dilation_rate": (1,) * n, "filters": w.spec.shape[0],
        "groups": 1, "kernel_size": w.spec.shape[2:], "padding_before": (0,) * n,
        "strides": (1,) * n,
    }  # fmt: skip
    return case(name, kind, (x, w), o, **{**attrs, **changes})


CONV = (
    conv_case("padded", f(4, 6, 5, 3), f(12, 6, 3, 3), out(4, 12, 5, 3), padding_before=(1, 1)),
    conv_case("strided", f(4, 6, 7, 7), f(2, 6, 3, 3), out(4, 2, 3, 3), strides=(2, 2)),
    conv_case("dilated", f(2, 4, 7, 7), f(6, 4, 3, 3), out(2, 6, 3, 3), dilation_rate=(2, 2)),
    conv_case("groups", f(2, 12, 5, 5), f(24, 3, 3, 3), out(2, 24, 3, 3), groups=4),
    conv_case("depthwise", f(2, 12, 5, 5), f(12, 1, 3, 3), out(2, 12, 3, 3), groups=12),
    conv_case("channels_last", f(4, 5, 5, 6), f(12, 3, 3, 6), out(4, 3, 3, 12),
              data_format="channels_last", kernel_size=(3, 3)),
    conv_case("", f(4, 6, 9), f(12, 6, 3), out(4, 12, 7), kind="conv1d"),
    conv_case("", f(2, 6, 3, 3, 3), f(4, 6, 2, 2, 2), out(2, 4, 2, 2, 2), kind="conv3d"),
)  # fmt: skip
