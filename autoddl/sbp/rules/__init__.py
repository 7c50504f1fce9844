"""The built-in operator rules, one file per family. Importing this package registers them."""

from . import (
    conv,
    elementwise,
    experts,
    gather,
    loss,
    matmul,
    normalize,
    pooling,
    reduce,
    shape,
    softmax,
    source,
)

__all__ = [
    "conv",
    "elementwise",
    "experts",
    "gather",
    "loss",
    "matmul",
    "normalize",
    "pooling",
    "reduce",
    "shape",
    "softmax",
    "source",
]
