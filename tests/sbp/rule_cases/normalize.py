"""Normalisation."""

from .case import case, out
from .draw import f, positive

BATCH_NORM = {"axis": 1, "epsilon": 1e-5, "momentum": 0.9}
LAYER_NORM = {"begin_norm_axis": 2, "begin_params_axis": 2, "epsilon": 1e-5}
FOUR = (f(6), positive(6), f(6), f(6))

NORMALIZE = (
    case("images", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=True,
         **BATCH_NORM),
    case("rows", "normalization", (f(4, 6), *FOUR), out(4, 6), training=True, **BATCH_NORM),
    case("untracked", "normalization", (f(4, 6, 3, 2), f(6), f(6)), out(4, 6, 3, 2),
         training=True, **BATCH_NORM),
    case("eval", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=False,
         **BATCH_NORM),
    case("", "layer_norm", (f(4, 6, 8), f(8), f(8)), out(4, 6, 8), center=True, scale=True,
         **LAYER_NORM),
    case("plain", "layer_norm", (f(4, 6, 8),), out(4, 6, 8), center=False, scale=False,
         **LAYER_NORM),
    case("two_dims", "layer_norm", (f(4, 6, 8), f(6, 8), f(6, 8)), out(4, 6, 8), center=True,
         scale=True, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5),
    case("", "rms_norm", (f(4, 6, 8), f(8)), out(4, 6, 8), epsilon=1e-5, normalized_shape=(8,)),
    case("", "l2_normalize", (f(4, 6, 8),), out(4, 6, 8), axis=1, epsilon=1e-12),
)  # fmt: skip
