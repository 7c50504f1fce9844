"""Transposed convolutions."""

from typing import Any

from autoddl.sbp.layout import TensorSpec

from .case import Arg, Case, out
from .conv import conv_case
from .draw import f


def transposed_case(
    name: str, x: Arg, w: Arg, o: TensorSpec, kind="deconv2d", **changes: Any
) -> Case:
    n = len(x.spec.shape) - 2
    filters = w.spec.shape[1] * changes.get("groups", 1)
    changes = {"filters": filters, "output_padding": (0,) * n, **changes}
    return conv_case(name, x, w, o, kind, **changes)


TRANSPOSED_CONV = (
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
