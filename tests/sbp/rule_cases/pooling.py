"""Pooling."""

from .case import case, out
from .draw import f

WINDOW = {
    "ceil_mode": False, "data_format": "channels_first", "kernel_size": (2, 2),
    "padding": (0, 0), "stride": (2, 2),
}  # fmt: skip
MAX = {"dilation": (1, 1), "return_indices": False}
AVG = {"count_include_pad": True, "divisor_override": 0}
PADDED = {"kernel_size": (3, 3), "padding": (1, 1)}

POOLING = (
    case("", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **MAX),
    case("padded", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **MAX),
    case("", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **AVG),
    case("padded", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **AVG),
    case("", "avg_pool_1d", (f(4, 6, 8),), out(4, 6, 4), **AVG,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,)}),
    case("", "avg_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), **AVG,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3}),
    case("", "max_pool_1d", (f(4, 6, 8),), out(4, 6, 4), return_indices=False,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,), "dilation": (1,)}),
    case("", "max_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), return_indices=False,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3,
            "dilation": (1,) * 3}),
    case("", "adaptive_avg_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("", "adaptive_max_pool1d", (f(4, 6, 8),), out(4, 6, 2), output_size=(2,)),
    case("", "adaptive_max_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("whole", "adaptive_avg_pool2d", (f(4, 6, 2, 8),), out(4, 6, 1, 1), output_size=(1, 1)),
    case("uneven", "adaptive_avg_pool2d", (f(4, 6, 5, 8),), out(4, 6, 2, 3), output_size=(2, 3)),
    case("", "adaptive_avg_pool1d", (f(4, 6, 8),), out(4, 6, 1), output_size=(1,)),
    case("", "adaptive_max_pool2d", (f(4, 6, 4, 8),), out(4, 6, 2, 2), output_size=(2, 2)),
)  # fmt: skip
