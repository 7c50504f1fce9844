"""Functions of two tensors, element by element; one may be stretched to the other."""

import autograd.numpy as np

from .registry import elementwise, op

BINARY = {
    "broadcast_sub": lambda x, y, a: x - y,
    "broadcast_mul": lambda x, y, a: x * y,
    "broadcast_div": lambda x, y, a: x / y,
    "broadcast_maximum": lambda x, y, a: np.maximum(x, y),
    "broadcast_minimum": lambda x, y, a: np.minimum(x, y),
    "elementwise_maximum": lambda x, y, a: np.maximum(x, y),
    "elementwise_minimum": lambda x, y, a: np.minimum(x, y),
    "broadcast_pow": lambda x, y, a: x**y,
    "pow": lambda x, y, a: x**y,
    "broadcast_fmod": lambda x, y, a: x - np.trunc(x / y) * y,
    "floordiv": lambda x, y, a: np.floor(x / y) + 0 * x,
    "atan2": lambda x, y, a: np.arctan2(x, y),
    "xdivy": lambda x, y, a: x / y,
    "broadcast_isclose_neq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"]),
    "broadcast_isclose_eq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"], True),
    "broadcast_equal": lambda x, y, a: x == y,
    "broadcast_not_equal": lambda x, y, a: x != y,
    "broadcast_less": lambda x, y, a: x < y,
    "broadcast_less_equal": lambda x, y, a: x <= y,
    "broadcast_greater": lambda x, y, a: x > y,
    "broadcast_greater_equal": lambda x, y, a: x >= y,
    "broadcast_logical_and": lambda x, y, a: np.logical_and(x, y),
    "broadcast_logical_or": lambda x, y, a: np.logical_or(x, y),
    "broadcast_logical_xor": lambda x, y, a: np.logical_xor(x, y),
    "masked_fill": lambda x, mask, a: np.where(mask, a["operand"] + 0 * x, x),
    "where_scalar_y": lambda c, x, a: np.where(c, x, a["operand"] + 0 * x),
    "where_scalar_x": lambda c, x, a: np.where(c, a["operand"] + 0 * x, x),
}

for _kind, _function in BINARY.items():
    op(_kind)(elementwise(_function))
