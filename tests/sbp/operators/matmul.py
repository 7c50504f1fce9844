"""Matrix products, and what else is done with whole matrices."""

import autograd.numpy as np

from autoddl.sbp.layout import TensorSpec

from .case import Arg, Case, case, f, out
from .reference import op, table


def product_case(name: str, kind: str, a: Arg, b: Arg, o: TensorSpec, ta=False, tb=False) -> Case:
    return case(name, kind, (a, b), o, transpose_a=ta, transpose_b=tb, alpha=1.0)


CASES = (
    product_case("nn", "matmul", f(4, 12), f(12, 6), out(4, 6)),
    product_case("nt", "matmul", f(4, 12), f(6, 12), out(4, 6), tb=True),
    product_case("tn", "matmul", f(12, 4), f(12, 6), out(4, 6), ta=True),
    product_case("tt", "matmul", f(12, 4), f(6, 12), out(4, 6), ta=True, tb=True),
    case("alpha", "matmul", (f(4, 12), f(12, 6)), out(4, 6),
         transpose_a=False, transpose_b=False, alpha=0.5),
    product_case("linear", "broadcast_matmul", f(4, 6, 8), f(12, 8), out(4, 6, 12), tb=True),
    product_case("left", "broadcast_matmul", f(8, 12), f(4, 12, 6), out(4, 8, 6)),
    product_case("stretched", "broadcast_matmul", f(6, 1, 4, 8), f(2, 8, 12), out(6, 2, 4, 12)),
    product_case("3d", "batch_matmul", f(6, 4, 8), f(6, 8, 12), out(6, 4, 12)),
    product_case("4d", "batch_matmul", f(2, 6, 4, 8), f(2, 6, 12, 8), out(2, 6, 4, 12), tb=True),
    case("", "matrix_vector_product", (f(4, 6), f(6)), out(4)),
    case("", "vector_matrix_product", (f(4), f(4, 6)), out(6)),
    case("", "dot", (f(12), f(12)), out()),
    case("", "linalg_cross", (f(4, 3, 6), f(4, 3, 6)), out(4, 3, 6), dim=1),
    case("stretched", "linalg_cross", (f(4, 3, 6), f(3, 1)), out(4, 3, 6), dim=1),
    case("", "inv", (f(4, 6, 5, 5),), out(4, 6, 5, 5)),
)  # fmt: skip


table({
    "matrix_vector_product": lambda x, y, a: np.dot(x, y),
    "vector_matrix_product": lambda x, y, a: np.dot(x, y),
    "dot": lambda x, y, a: np.dot(x, y),
    "inv": lambda x, a: np.linalg.inv(x),
})  # fmt: skip


@op("matmul", "broadcast_matmul", "batch_matmul")
def _matmul(inputs, attrs, shard):
    a, b = inputs
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return (attrs["alpha"] * np.matmul(a, b),)


@op("linalg_cross")
def _cross(inputs, attrs, shard):
    whole = 0 * sum(inputs)  # stretches each
    x, y = (np.moveaxis(t + whole, attrs["dim"], 0) for t in inputs)
    vectors = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return (np.stack(vectors, axis=attrs["dim"]),)
