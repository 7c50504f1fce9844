"""Sources, and the graph's own operators."""

import autograd.numpy as np

from .case import case, counts, f, index, out
from .reference import op, table

CASES = (
    case("", "constant", (), out(4, 6), shape=(4, 6), floating_value=2.5, integer_value=0,
         is_floating_value=True, dtype="float32"),
    case("", "arange", (), out(12, dtype="int64"), integer_start=0, integer_limit=12,
         integer_delta=1, float_start=0.0, float_limit=0.0, float_delta=0.0, dtype="int64"),
    case("", "repeat_interleave", (counts(2, 6), counts(2, 6, sums=True)),
         out(12, dtype="int32"), repeat_num=12),
    case("", "eye", (), out(4, 6), rows=4, cols=6, dtype="float32"),
    case("", "fork", (f(4, 6),), out(4, 6)),
    case("ints", "fork", (index(9, 4, 6),), out(4, 6, dtype="int64")),
    case("", "stop_gradient", (f(4, 6),), out(4, 6)),
    case("", "by_mode", (f(4, 6), f(4, 6)), out(4, 6)),
    case("alone", "by_mode", (f(4, 6),), out(4, 6)),
    case("", "loss", (f(),)),
    case("", "opaque", (f(4, 6), f(6, 8)), out(4, 8), module="m", batchwise=False, num_args=1),
    case("batchwise", "opaque", (f(4, 6), index(9, 4, 3), f(6, 8)), out(4, 8), module="m",
         batchwise=True, num_args=2),
    case("side_input", "opaque", (f(4, 6), f(6, 8)), out(4, 8), module="m", batchwise=True,
         num_args=2),
)  # fmt: skip


table({
    "constant": lambda a: np.full(a["shape"], a["floating_value"]),
    "arange": lambda a: np.arange(a["integer_start"], a["integer_limit"], a["integer_delta"]),
    "repeat_interleave": lambda counts, sums, a: np.repeat(np.arange(len(counts)), counts),
    "stop_gradient": lambda x, a: 1 * x,
    "by_mode": lambda read, *evaluation_and_attrs: 1 * read,
    "eye": lambda a: np.eye(a["rows"], a["cols"]),
})  # fmt: skip


@op("opaque")
def _opaque(inputs, attrs, shard):
    """A layer; further arguments scale its rows."""
    x, *scales, weight = inputs
    rows = np.tanh(np.dot(x, weight))
    for scale in scales:
        rows = rows * np.mean(scale, axis=-1, keepdims=True)
    return (rows,)
