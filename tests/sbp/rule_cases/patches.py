"""Patches of images."""

from .case import case, out
from .draw import f

WINDOW = {"data_format": "channels_first", "dilation_rate": (1, 2), "kernel_size": (2, 2),
          "padding": (0, 0), "strides": (1, 1)}  # fmt: skip

PATCHES = (
    case("", "unfold", (f(4, 6, 5, 4),), out(4, 24, 8), **WINDOW),
    case("overlapping", "unfold", (f(4, 6, 3, 2),), out(4, 24, 8),
         **{**WINDOW, "strides": (1, 1), "padding": (1, 1)}),
    case("", "fold", (f(4, 24, 8),), out(4, 6, 5, 4), output_size=(5, 4), **WINDOW),
    case("overlapping", "fold", (f(4, 24, 8),), out(4, 6, 3, 2), output_size=(3, 2),
         **{**WINDOW, "strides": (1, 1), "padding": (1, 1)}),
)  # fmt: skip
