"""Matrix products, and what else is done with whole matrices."""

import autograd.numpy as np

from .registry import op


@op("matmul", "broadcast_matmul", "batch_matmul")
def _matmul(inputs, attrs, shard):
    a, b = inputs
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return (attrs["alpha"] * np.matmul(a, b),)


@op("matrix_vector_product", "vector_matrix_product", "dot")
def _dot(inputs, attrs, shard):
    return (np.dot(*inputs),)


@op("linalg_cross")
def _cross(inputs, attrs, shard):
    whole = 0 * sum(inputs)  # stretches each
    x, y = (np.moveaxis(t + whole, attrs["dim"], 0) for t in inputs)
    vectors = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return (np.stack(vectors, axis=attrs["dim"]),)


@op("inv")
def _inverse(inputs, attrs, shard):
    return (np.linalg.inv(inputs[0]),)
