"""Losses, of each row or element."""

import autograd.numpy as np

from .case import case, f, index, out, positive, shares, symbols, unit
from .elementwise import softplus
from .gather import masked_lookup
from .reference import op
from .softmax import logsumexp

CASES = (
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


@op("nll")
def _nll(inputs, attrs, shard):
    x, target, *weight = inputs
    counted = target != attrs["ignore_index"]
    row_weight = counted * (weight[0][target] if weight else 1.0)
    safe, inside = masked_lookup(target - shard.in_starts[0][-1], x.shape[-1])
    return -row_weight * inside * x[np.arange(len(target)), safe], row_weight


@op("sparse_softmax_cross_entropy")
def _sparse_cross_entropy(inputs, attrs, shard):
    x, label = inputs
    assert attrs["depth"] == x.shape[-1]
    picked = np.sum(x * (label[..., None] == np.arange(x.shape[-1])), axis=-1)
    return (logsumexp(x)[..., 0] - picked,)


@op("softmax_cross_entropy")
def _cross_entropy(inputs, attrs, shard):
    x, label = inputs
    return (np.sum(label * (logsumexp(x) - x), axis=-1),)


@op("smooth_l1_loss")
def _smooth_l1(inputs, attrs, shard):
    distance, beta = np.abs(inputs[0] - inputs[1]), attrs["beta"]
    return (np.where(distance < beta, 0.5 * distance**2 / beta, distance - 0.5 * beta),)


@op("kl_div_loss")
def _kl_div(inputs, attrs, shard):
    x, target = inputs
    return (target * (np.log(target) - x),)


@op("binary_cross_entropy")
def _bce(inputs, attrs, shard):
    x, target, *weight = inputs
    loss = -target * np.log(x) - (1 - target) * np.log(1 - x)
    return (loss * weight[0] if weight else loss,)


@op("binary_cross_entropy_with_logits")
def _bce_with_logits(inputs, attrs, shard):
    x, target, *weights = inputs
    positive = weights.pop() if attrs["has_pos_weight"] else 1.0
    loss = target * positive * softplus(-x) + (1 - target) * softplus(x)
    return (loss * weights[0] if weights else loss,)


@op("binary_cross_entropy_with_logits_reduce_mean")
def _bce_mean(inputs, attrs, shard):
    x, target = inputs
    loss = target * softplus(-x) + (1 - target) * softplus(x)
    return (np.sum(loss) / attrs.get("count", x.size),)


@op("ctc_loss")
def _ctc(inputs, attrs, shard):
    """Forward recursion over the targets with blanks between them, row by row."""
    log_probs, targets, steps, lengths = inputs
    losses = []
    for row in range(len(targets)):
        path = [attrs["blank"]]
        for symbol in targets[row, : lengths[row]]:
            path += [symbol, attrs["blank"]]
        given = log_probs[: steps[row], row][:, np.array(path)]
        alpha = [given[0, s] if s < 2 else -1e30 for s in range(len(path))]
        for now in given[1:]:
            before, alpha = alpha, []
            for s in range(len(path)):
                total = before[s]
                if s > 0:
                    total = np.logaddexp(total, before[s - 1])
                if s > 1 and path[s] not in (attrs["blank"], path[s - 2]):
                    total = np.logaddexp(total, before[s - 2])
                alpha.append(total + now[s])
        losses.append(-np.logaddexp(alpha[-1], alpha[-2]))
    return (np.array(losses),)
