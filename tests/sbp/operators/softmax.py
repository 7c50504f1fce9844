"""Softmax, its logarithm, and attention, plain and with groups of heads."""

import autograd.numpy as np

from .case import case, f, flags, out
from .reference import op, table

SIX = f(4, 6, 8, 2)

ATTENTION = (
    case("", "attention", (SIX, f(4, 6, 10, 2), f(4, 6, 10, 12)), out(4, 6, 8, 12), causal=False,
         scale=0.5),
    case("causal", "attention", (SIX, f(4, 6, 8, 2), f(4, 6, 8, 12)), out(4, 6, 8, 12),
         causal=True, scale=0.5),
    case("groups", "attention", (f(2, 12, 4, 2), f(2, 4, 4, 2), f(2, 4, 4, 6)), out(2, 12, 4, 6),
         causal=True, scale=0.7),
    case("one_group", "attention", (SIX, f(4, 1, 8, 2), f(4, 1, 8, 12)), out(4, 6, 8, 12),
         causal=True, scale=0.5),
    case("mask", "attention", (SIX, f(4, 6, 10, 2), f(4, 6, 10, 12), f(6, 8, 10)),
         out(4, 6, 8, 12), causal=False, scale=0.5),
    case("flags", "attention", (f(2, 4, 6, 2), f(2, 4, 8, 2), f(2, 4, 8, 10), flags(2, 1, 6, 8)),
         out(2, 4, 6, 10), causal=False, scale=0.5),
)  # fmt: skip
CASES = (
    *ATTENTION,
    *(
        case(name, kind, (f(*shape),), out(*shape))
        for kind in ("softmax", "log_softmax")
        for name, shape in (("2d", (4, 12)), ("4d", (2, 4, 6, 12)))
    ),
)


def logsumexp(x):
    m = np.max(x, axis=-1, keepdims=True)
    return m + np.log(np.sum(np.exp(x - m), axis=-1, keepdims=True))


table({
    "softmax": lambda x, a: np.exp(x - logsumexp(x)),
    "log_softmax": lambda x, a: x - logsumexp(x),
})  # fmt: skip


@op("attention")
def _attention(inputs, attrs, shard):
    q, k, v, *masks = inputs
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * attrs["scale"]
    if attrs["causal"]:
        masks = [*masks, np.tril(np.ones(scores.shape[-2:], bool))]
    for mask in masks:
        added = np.where(mask, 0.0, -1e9) if mask.dtype == bool else mask
        scores = scores + added
    return (np.matmul(np.exp(scores - logsumexp(scores)), v),)
