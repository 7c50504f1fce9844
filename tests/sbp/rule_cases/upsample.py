"""Upsampling."""

from .case import case, out
from .draw import f

SCALES = {"data_format": "channels_first", "height_scale": 2.0, "width_scale": 2.0,
          "output_size": ()}  # fmt: skip
LINE = {"data_format": "channels_first", "output_size": (), "scale_factor": 2.0}

UPSAMPLE = (
    case("", "upsample_nearest_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), **SCALES),
    case("", "upsample_bilinear_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4),
         align_corners=False, **SCALES),
    case("", "upsample_nearest_1d", (f(4, 6, 5),), out(4, 6, 10), **LINE),
    case("", "upsample_linear_1d", (f(4, 6, 5),), out(4, 6, 10), align_corners=False, **LINE),
    case("", "upsample_bicubic_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), align_corners=False,
         **SCALES),
    case("", "upsample_nearest_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         **SCALES),
    case("", "upsample_trilinear_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         align_corners=False, **SCALES),
)  # fmt: skip
