"""Grids of points, and images sampled there."""

from .case import case, out
from .draw import f

SAMPLING = (
    case("", "grid_sample", (f(4, 6, 3, 5), f(4, 8, 12, 2)), out(4, 6, 8, 12),
         align_corners=False, interpolation_mode="bilinear", padding_mode="zeros"),
    case("", "affine_grid", (f(6, 2, 3),), out(6, 3, 5, 2), align_corners=False,
         size=(6, 4, 3, 5)),
)  # fmt: skip
