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


def ends(rows: int, *shape: int) -> Arg:
    """Where experts' rows end, the last at `rows`; some may have none."""

    def draw(rng, shape):
        return np.append(np.sort(rng.integers(0, rows + 1, shape[0] - 1)), rows)

    return Arg(TensorSpec(shape, "int32"), draw)


CASES = (
    case("two", "moe_dispatch", (f(4, 6, 8), index(12, 4, 6, 2), taken(4, 6, 2)),
         out(12, 4, 9, 8), experts=12, capacity=9),
    case("one", "moe_dispatch", (f(4, 6, 8), index(2, 4, 6, 1), taken(4, 6, 1)),
         out(2, 4, 5, 8), experts=2, capacity=5),
    case("two", "moe_combine", (f(12, 4, 9, 8), index(12, 4, 6, 2), taken(4, 6, 2), f(4, 6, 2)),
         out(4, 6, 8)),
    case("one", "moe_combine", (f(2, 4, 5, 8), index(2, 4, 6, 1), taken(4, 6, 1), f(4, 6, 1)),
         out(4, 6, 8)),
    case("", "grouped_matmul", (f(12, 8), f(4, 8, 6), ends(12, 4)), out(12, 6)),
    case("rest", "grouped_matmul", (f(12, 8), f(2, 8, 6), ends(9, 2)), out(12, 6)),
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


@op("grouped_matmul")
def _grouped(inputs, attrs, shard):
    x, weight, ends = inputs
    rows, first = shard.in_starts[0][0] + np.arange(len(x)), shard.in_starts[1][0]
    starts = np.concatenate([[0], ends[:-1]])
    own = (rows[:, None] >= starts) & (rows[:, None] < ends)
    return (np.einsum("re,ri,eio->ro", 1.0 * own[:, first : first + len(weight)], x, weight),)
