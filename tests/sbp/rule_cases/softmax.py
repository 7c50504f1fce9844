"""Softmax and its logarithm."""

from .case import case, out
from .draw import f

SOFTMAX = tuple(
    case(name, kind, (f(*shape),), out(*shape))
    for kind in ("softmax", "log_softmax")
    for name, shape in (("2d", (4, 12)), ("4d", (2, 4, 6, 12)))
)
