"""Padding, by the tensor's own elements or by a value."""

from .case import case, out
from .draw import f

OWN = ("reflection", "replication")

PADDING_BY_OWN = (
    *(case("", f"{mode}_pad1d", (f(4, 6, 5),), out(4, 6, 8), padding=(1, 2)) for mode in OWN),
    *(case("", f"{mode}_pad2d", (f(4, 6, 3, 5),), out(4, 6, 4, 8), padding=(1, 2, 0, 1))
      for mode in OWN),
)  # fmt: skip

PADDING_BY_VALUE = (
    case("", "pad", (f(4, 6, 3, 2),), out(4, 6, 5, 2), padding=(0, 0, 1, 1),
         padding_before=(0, 0, 1, 0), padding_after=(0, 0, 1, 0), floating_constant_value=0.0,
         integral_constant_value=0),
    case("value", "pad", (f(4, 6),), out(4, 9), padding=(1, 2), padding_before=(0, 1),
         padding_after=(0, 2), floating_constant_value=0.5, integral_constant_value=0),
)  # fmt: skip
