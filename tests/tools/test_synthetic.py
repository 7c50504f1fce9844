"""Made-up batches hold integers that the model's tables and losses accept."""

import numpy as np

from autoddl.graph.graph import Graph, Op, Tensor
from autoddl.sbp.layout import TensorSpec
from autoddl.tools.synthetic import integer_limits, synthetic_batches


def graph_of(ops: list[tuple[str, str, tuple[str, ...], str, tuple[int, ...], dict]]) -> Graph:
    """A graph from (name, kind, inputs, dtype, shape of the one output, attrs)."""
    return Graph(
        ops=tuple(Op(name, kind, ins, (name,), attrs) for name, kind, ins, _, _, attrs in ops),
        tensors={
            name: Tensor(name, TensorSpec(shape, dtype)) for name, _, _, dtype, shape, _ in ops
        },
        outputs=("y",),
        loss="",
        batch=4,
    )


LANGUAGE = graph_of(
    [
        ("x", "input", (), "int64", (4, 8), {"index": 0}),
        ("w", "param", (), "float32", (50, 16), {"name": "w"}),
        ("t", "param", (), "float32", (2, 30), {"name": "t"}),
        ("flat", "reshape", ("x",), "int64", (32,), {}),
        ("e", "gather", ("w", "flat"), "float32", (32, 16), {"axis": 0}),
        ("f", "gather", ("t", "x"), "float32", (2, 4, 8), {"axis": 1}),
        ("z", "input", (), "float32", (4,), {"index": 1}),
        ("m", "input", (), "int32", (4, 8), {"index": 2}),
        ("c", "cast", ("m",), "float32", (4, 8), {}),
        ("l", "input", (), "int64", (32,), {"index": 3}),
        ("y", "nll", ("e", "l"), "float32", (32,), {}),
    ]
)


def test_limits_follow_the_readers():
    # x reaches a table of 50 rows and, along dim 1, one of 30; l counts 16 classes; m nothing.
    assert integer_limits(LANGUAGE) == {0: 30, 2: 2, 3: 16}


def test_batches_are_like_the_example_and_repeat():
    example = [
        np.zeros((4, 8), np.int64), np.zeros(4, np.float32), np.zeros((4, 8), np.int32),
        np.zeros(32, np.int64),
    ]  # fmt: skip
    first, again = (list(synthetic_batches(example, LANGUAGE, 3, seed=1)) for _ in range(2))
    assert len(first) == 3
    for batch, same in zip(first, again, strict=True):
        for array, equal, like, limit in zip(batch, same, example, (30, None, 2, 16), strict=True):
            assert (array.shape, array.dtype) == (like.shape, like.dtype)
            assert np.array_equal(array, equal)
            if limit is not None:
                assert 0 <= array.min() < array.max() < limit
    assert not np.array_equal(first[0][1], first[1][1])
