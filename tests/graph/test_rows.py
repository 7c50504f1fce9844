"""What micro-batches may do with a graph, told from the rules of its operators."""

from dataclasses import replace

import pytest

from autoddl.graph.batch_norm import batch_norm_of, with_batch_norm
from autoddl.graph.graph import Graph, Op, Tensor
from autoddl.graph.rows import Rows, find_rows, in_several, known_from, rows_apart
from autoddl.sbp.layout import TensorSpec
from tests.graphs import Builder

ROWS = 8


class Loss(Builder):
    """x W and its target; the last operator gives the loss."""

    def __init__(self) -> None:
        super().__init__(ROWS)
        self.out = self.linear("fc", self.input(0, (ROWS, 4)), 6, bias=False)
        self.target = self.input(1, (ROWS, 6))

    def total(self, x: str, name: str, dtype: str = "float32") -> str:
        dims = tuple(range(len(self.shape(x))))
        return self.op(name, "reduce_sum", (x,), (), dtype, axis=dims, keepdims=False)

    def mean(self, x: str, name: str) -> str:
        summed = self.total(x, f"{name}.sum")
        return self.op(
            name, "scalar_mul", (summed,), (), operand=1 / ROWS, batch_attrs={"operand": (-1,)}
        )

    def made(self, loss: str) -> Graph:
        ops = (*self.ops, Op("loss", "loss", (loss,), ()))
        graph = Graph(
            ops=ops, tensors=self.tensors, outputs=(self.out,), loss=loss, batch=ROWS, name="loss"
        )
        graph.verify()
        return graph

    def divided(self, a: str, b: str) -> Graph:
        return self.made(self.op("ratio", "broadcast_div", (a, b), ()))


def summed(b: Loss) -> Graph:
    return b.made(b.total(b.out, "sum"))


def mean(b: Loss) -> Graph:
    return b.made(b.mean(b.out, "mean"))


def reduced_mean(b: Loss) -> Graph:
    return b.made(b.op("mean", "reduce_mean", (b.out,), (), axis=(0, 1), keepdims=False))


def mean_of_row_means(b: Loss) -> Graph:
    each = b.op("each", "reduce_mean", (b.out,), (ROWS,), axis=(1,), keepdims=False)
    return b.made(b.op("mean", "reduce_mean", (each,), (), axis=(0,), keepdims=False))


def weighted(b: Loss) -> Graph:
    both = b.op("both", "broadcast_mul", (b.out, b.target), (ROWS, 6))
    return b.divided(b.total(both, "above"), b.total(b.target, "below"))


def counted(b: Loss) -> Graph:
    """By a number of rows, which is whole, and at least 1."""
    found = b.op("found", "scalar_logical_greater", (b.target,), (ROWS, 6), "int8", operand=0)
    count = b.total(found, "count", "int64")
    some = b.op("some", "clip_by_scalar_min", (count,), (), "int64", integral_min=1)
    return b.divided(b.total(b.out, "above"), some)


def ignoring(b: Loss) -> Graph:
    labels = b.input(2, (ROWS,), "int64")
    b.op("nll", "nll", (b.out, labels), (ROWS,), ignore_index=-100)
    b.tensors["nll:1"] = Tensor("nll:1", TensorSpec((ROWS,), "float32"), (0,))
    b.ops[-1] = replace(b.ops[-1], outputs=("nll", "nll:1"))
    return b.divided(b.total("nll", "above"), b.total("nll:1", "below"))


def decayed(b: Loss) -> Graph:
    """A sum over rows, a mean, and what has no rows."""
    weights = b.total("fc.weight", "weights")
    terms = (b.total(b.out, "sum"), b.mean(b.target, "mean"), weights)
    return b.made(b.op("terms", "add_n", terms, ()))


def turned(b: Loss, name: str = "turned") -> str:
    """With the rows in the second dim."""
    b.op(name, "transpose", (b.out,), (6, ROWS), perm=(1, 0))
    b.tensors[name] = replace(b.tensors[name], batch_dims=(1,))
    return name


def flattened(b: Loss, name: str, x: str) -> str:
    scaled = {"shape": (1,)}
    b.op(name, "reshape", (x,), (6 * ROWS,), shape=(6 * ROWS,), batch_attrs=scaled)
    b.tensors[name] = replace(b.tensors[name], batch_dims=(0,))
    return name


def interleaved(b: Loss) -> Graph:
    """All rows six times one behind the other, as where a sequence of tokens leads."""
    light = b.unary("relu", flattened(b, "flat", turned(b)), "light")
    b.tensors[light] = replace(b.tensors[light], batch_dims=(0,))
    return b.made(b.mean(light, "mean"))


def added_up(b: Loss) -> Graph:
    """By Python's `sum`, which begins with zero."""
    first = b.op("zero", "scalar_add", (b.mean(b.out, "mean"),), (), operand=0)
    light = b.unary("relu", b.out, "light")
    return b.made(b.op("both", "add_n", (first, b.mean(light, "other")), ()))


APART = {
    added_up: Rows(power=1),
    interleaved: Rows(power=1),
    summed: Rows(power=0),
    mean: Rows(power=1),
    reduced_mean: Rows(power=1),
    mean_of_row_means: Rows(power=1),
    weighted: Rows(power=0, known={"below": 0}),
    counted: Rows(power=0, known={"count": 0}),
    ignoring: Rows(power=0, known={"below": 0}),
    decayed: Rows(power=1, factors={("terms", 0): 1}),
}


@pytest.mark.parametrize("make", APART, ids=lambda make: make.__name__)
def test_losses_that_add_up(make):
    graph = make(Loss())
    for same in (graph, graph.with_forks(), graph.with_batch(2)):
        assert find_rows(same) == APART[make]
    find_rows(graph).check(4)


def product(b: Loss) -> Graph:
    pairs = b.op(
        "pairs", "matmul", (b.out, turned(b)), (ROWS, ROWS), transpose_a=False, transpose_b=False
    )
    b.tensors["pairs"] = replace(b.tensors["pairs"], batch_dims=(0, 1))
    return b.made(b.total(pairs, "sum"))


def root(b: Loss) -> Graph:
    return b.made(b.op("root", "sqrt", (b.mean(b.out, "mean"),), ()))


def learned(b: Loss) -> Graph:
    """A weighted mean whose weights are computed from parameters."""
    both = b.op("both", "broadcast_mul", (b.out, b.out), (ROWS, 6))
    return b.divided(b.total(both, "above"), b.total(b.out, "below"))


def spread(b: Loss) -> Graph:
    spread = b.op("spread", "var", (b.out,), (6,), dim=(0,), keepdim=False, unbiased=True)
    return b.made(b.total(spread, "sum"))


def one_row(b: Loss) -> Graph:
    row = b.op("row", "narrow", (b.out,), (1, 6), dim=0, start=0, length=1)
    return b.made(b.total(row, "sum"))


def numbered(b: Loss) -> Graph:
    """By the row's number in the batch."""
    numbers = b.op("numbers", "arange", (), (ROWS, 1), delta=1)
    return b.made(b.total(b.op("x", "broadcast_mul", (b.out, numbers), (ROWS, 6)), "sum"))


def opaque(b: Loss) -> Graph:
    x = b.op("x", "opaque", (b.out,), (ROWS, 6), num_args=1, batchwise=False)
    return b.made(b.total(x, "sum"))


def unlike(b: Loss) -> Graph:
    """Products of rows that lie one behind the other with rows in another order."""
    orders = flattened(b, "flat", turned(b)), flattened(b, "rows", b.out)
    both = b.op("both", "broadcast_mul", orders, (6 * ROWS,))
    b.tensors[both] = replace(b.tensors[both], batch_dims=(0,))
    return b.made(b.total(both, "sum"))


MEETING = {
    unlike: "both",
    product: "pairs", root: "root", learned: "ratio", spread: "spread", one_row: "row",
    numbered: "numbers", opaque: "x",
}  # fmt: skip


@pytest.mark.parametrize("make", MEETING, ids=lambda make: make.__name__)
def test_operators_in_which_rows_meet_are_named(make):
    graph = make(Loss())
    for same in (graph, graph.with_forks()):
        meeting = find_rows(same).meeting
        assert meeting is not None and meeting.name == MEETING[make]
    find_rows(graph).check(1)
    hint = "batchwise" if make is opaque else "train it whole"
    with pytest.raises(ValueError, match=f"meet in {MEETING[make]} .*in 4 micro-batches.*{hint}"):
        find_rows(graph).check(4)


def normed(moves: bool = False) -> Graph:
    """moves: with moving statistics"""
    b = Loss()
    kept = [f"norm.{n}" for n in ("mean", "variance")] if moves else []
    vectors = tuple(b.op(name, "buffer", (), (6,), name=name) for name in kept)
    vectors += tuple(b.param(f"norm.{n}", (6,)) for n in ("weight", "bias"))
    b.out = b.op(
        "norm", "normalization", (b.out, *vectors), (ROWS, 6), axis=1, training=True,
        momentum=0.9, epsilon=1e-5,
    )  # fmt: skip
    return mean(b)


def test_statistics_of_the_batch_keep_it_whole():
    graph = normed()
    with pytest.raises(ValueError, match="norm .* in 2 micro-batches.*'micro_batch' or 'shard'"):
        find_rows(graph).check(2)
    assert batch_norm_of(graph) == "batch"
    for choice in ("micro_batch", "shard"):
        chosen = with_batch_norm(graph, choice)
        assert batch_norm_of(chosen) == choice
        assert find_rows(chosen) == Rows(power=1)
        assert with_batch_norm(chosen, "batch") == graph
    assert rows_apart(normed(moves=True)) >= {"norm"}, "evaluation takes moving statistics"
    assert "norm" not in rows_apart(graph), "it has none of these"


@pytest.mark.parametrize("choice", ["batch", "micro_batch", "shard"])
def test_only_statistics_of_shards_exchange_nothing(choice):
    graph = with_batch_norm(normed(), choice)
    (op,) = (op for op in graph.ops if op.kind == "normalization")
    inner = [s for s in graph.signatures(op) if s.inner is not None]
    assert bool(inner) == (choice != "shard")
    assert "S0, B, B -> S0 ; S0 -> S0, P, P" in map(str, graph.signatures(op))


def test_results_are_evaluated_in_parts_unless_their_rows_meet():
    assert "fc/matmul" in rows_apart(summed(Loss()))
    graph = replace(interleaved(Loss()), outputs=("light",))
    assert "turned" in rows_apart(graph) and "light" not in rows_apart(graph)
    graph = product(Loss())
    assert not {"pairs", "sum"} & rows_apart(replace(graph, outputs=("pairs",)))


def test_what_a_known_sum_is_computed_from():
    graph = ignoring(Loss())
    assert known_from(graph, "below") == ("input.2", "nll", "below")
    assert known_from(graph, "above") is None, "depends on parameters"
    rows = find_rows(graph)
    assert in_several(graph, rows, {"nll": 3, "below": 3, "fc/matmul": 0}) is None
    assert in_several(graph, rows, {"nll": 3, "below": 4}) == "below"


def test_a_micro_batch_of_one_row_is_like_any_other():
    loss = Loss()
    graph = loss.made(
        loss.mean(loss.op("error", "broadcast_sub", (loss.out, loss.target), (ROWS, 6)), "mean")
    )
    assert find_rows(graph).meeting is None
    assert find_rows(graph.with_batch(1)) == find_rows(graph)
