"""Losses."""

from .case import case, out
from .draw import f, index, positive, shares, symbols, unit

LOSS = (
    case("", "nll", (f(4, 12), index(12, 4)), out(4), out(4), ignore_index=-100),
    case("ignored", "nll", (f(8, 6), index(6, 8)), out(8), out(8), ignore_index=1),
    case("weighted", "nll", (f(4, 12), index(12, 4), positive(12)), out(4), out(4),
         ignore_index=-100),
    case("", "sparse_softmax_cross_entropy", (f(4, 12), index(12, 4)), out(4), depth=12),
    case("3d", "sparse_softmax_cross_entropy", (f(2, 4, 6), index(6, 2, 4)), out(2, 4), depth=6),
    case("", "softmax_cross_entropy", (f(4, 12), shares(4, 12)), out(4)),
    case("", "smooth_l1_loss", (f(4, 6), f(4, 6)), out(4, 6), beta=1.0),
    case("", "kl_div_loss", (f(4, 6), unit(4, 6)), out(4, 6), log_target=False),
    case("", "binary_cross_entropy", (unit(4, 6), unit(4, 6)), out(4, 6)),
    case("weighted", "binary_cross_entropy", (unit(4, 6), unit(4, 6), unit(4, 6)), out(4, 6)),
    case("", "binary_cross_entropy_with_logits", (f(4, 6), unit(4, 6)), out(4, 6),
         has_pos_weight=False),
    case("pos_weight", "binary_cross_entropy_with_logits", (f(4, 6), unit(4, 6), positive(6)),
         out(4, 6), has_pos_weight=True),
    case("", "ctc_loss", (f(7, 6, 5), symbols(5, 6, 3), index(1, 6, start=7), index(3, 6, start=1)),
         out(6), blank=0, max_target_length=3, zero_infinity=False),
    case("", "binary_cross_entropy_with_logits_reduce_mean", (f(4, 6), unit(4, 6)), out()),
)  # fmt: skip
