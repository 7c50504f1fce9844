"""Tokens to experts and back, as products with one-hot tensors, which GShard makes."""

import autograd.numpy as np

from autoddl.sbp.layout import TensorSpec

from .case import Arg, case, f, index, out
from .reference import op


def taken(*shape: int) -> Arg:
    """Positions of which no two in a sequence are equal."""

    def draw(rng, shape):
        return rng.permuted(np.tile(np.arange(shape[1] * shape[2]), (shape[0], 1)), axis=1).reshape(
            shape
        )

    return Arg(TensorSpec(shape, "int64"), draw)


CASES = (
    case("two", "moe_dispatch", (f(4, 6, 8), index(12, 4, 6, 2), taken(4, 6, 2)),
         out(12, 4, 9, 8), experts=12, capacity=9),
    case("one", "moe_dispatch", (f(4, 6, 8), index(2, 4, 6, 1), taken(4, 6, 1)),
         out(2, 4, 5, 8), experts=2, capacity=5),
    case("two", "moe_combine", (f(12, 4, 9, 8), index(12, 4, 6, 2), taken(4, 6, 2), f(4, 6, 2)),
         out(4, 6, 8)),
    case("one", "moe_combine", (f(2, 4, 5, 8), index(2, 4, 6, 1), taken(4, 6, 1), f(4, 6, 1)),
         out(4, 6, 8)),
)  # fmt: skip


def goes_to(expert, position, experts, capacity, first):
    """[batch, length, k, experts, capacity]: 1 where a choice takes a place of these experts."""
    whom = np.expand_dims(expert - first, -1) == np.arange(experts)
    where = np.expand_dims(position, -1) == np.arange(capacity)
    return 1.0 * np.expand_dims(whom, -1) * np.expand_dims(where, -2)


@op("moe_dispatch")
def _dispatch(inputs, attrs, shard):
    x, expert, position = inputs
    sizes = attrs["experts"], attrs["capacity"]
    to = goes_to(expert, position, *sizes, shard.out_starts[0][0])
    return (np.einsum("bskec,bsd->ebcd", to, x),)


@op("moe_combine")
def _combine(inputs, attrs, shard):
    y, expert, position, weight = inputs
    to = goes_to(expert, position, y.shape[0], y.shape[2], shard.in_starts[0][0])
    return (np.einsum("bskec,bsk,ebcd->bsd", to, weight, y),)
