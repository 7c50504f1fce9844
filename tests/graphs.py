"""Graphs built by hand, as a trace would give them: planning is tested without OneFlow."""

from dataclasses import dataclass, field, replace
from typing import Any

from autoddl.graph.graph import Graph, Op, Tensor
from autoddl.sbp.layout import TensorSpec

Shape = tuple[int, ...]


@dataclass
class Builder:
    """Adds operators one by one; every method gives the name of the tensor it makes."""

    batch: int
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def op(
        self, op_name: str, kind: str, inputs: tuple[str, ...], size: Shape, dtype: str = "float32",
        module: str = "", batch_attrs: dict[str, tuple[int, ...]] | None = None, **attrs: Any,
    ) -> str:  # fmt: skip
        batch_dims = (0,) if kind != "param" and size and size[0] == self.batch else ()
        self.tensors[op_name] = Tensor(op_name, TensorSpec(size, dtype), batch_dims)
        self.ops.append(
            Op(op_name, kind, inputs, (op_name,), attrs, batch_attrs or {}, module=module)
        )
        return op_name

    def input(self, index: int, shape: Shape, dtype: str = "float32") -> str:
        return self.op(f"input.{index}", "input", (), shape, dtype, index=index)

    def param(self, name: str, shape: Shape) -> str:
        return self.op(name, "param", (), shape, name=name, trainable=True)

    def shape(self, name: str) -> Shape:
        return self.tensors[name].spec.shape

    def linear(self, name: str, x: str, width: int, bias: bool = True) -> str:
        *rows, before = self.shape(x)
        weight = self.param(f"{name}.weight", (width, before))
        kind = "matmul" if len(rows) == 1 else "broadcast_matmul"
        out = self.op(
            f"{name}/{kind}", kind, (x, weight), (*rows, width), module=name,
            transpose_a=False, transpose_b=True, alpha=1.0,
        )  # fmt: skip
        if bias:
            b = self.param(f"{name}.bias", (width,))
            out = self.op(f"{name}/add", "broadcast_add", (out, b), (*rows, width), module=name)
        return out

    def unary(self, kind: str, x: str, name: str) -> str:
        return self.op(name, kind, (x,), self.shape(x))

    def graph(self, out: str, name: str) -> Graph:
        """With the sum of `out` as the loss."""
        dims = tuple(range(len(self.shape(out))))
        self.op("sum", "reduce_sum", (out,), (), axis=dims, keepdims=False)
        self.ops.append(Op("loss", "loss", ("sum",), ()))
        graph = Graph(
            ops=tuple(self.ops),
            tensors=self.tensors,
            outputs=(out,),
            loss="sum",
            batch=self.batch,
            name=name,
        )
        graph.verify()
        return graph


def mlp(batch: int, widths: tuple[int, ...]) -> Graph:
    """Dense layers fc0, fc1, ... with a ReLU after each."""
    b = Builder(batch)
    x = b.input(0, (batch, widths[0]))
    for n, width in enumerate(widths[1:]):
        x = b.unary("relu", b.linear(f"fc{n}", x, width), f"relu{n}")
    return b.graph(x, "mlp")


def attention(layers: int, batch: int, length: int, width: int, heads: int) -> Graph:
    """Self-attention layers one after the other, no norms or biases: AutoDDL's Fig. 3 stacked."""
    b = Builder(batch)
    each = width // heads
    x = b.input(0, (batch, length, width))
    for n in range(layers):
        name = f"layer{n}"
        qkv = b.linear(f"{name}.qkv", x, 3 * width, bias=False)
        split: Shape = (batch, length, heads, 3 * each)
        y = b.op(f"{name}/split", "reshape", (qkv,), split,
                 shape=split, batch_attrs={"shape": (1, 0, 0, 0)})  # fmt: skip
        y = b.op(f"{name}/heads", "transpose", (y,), (batch, heads, length, 3 * each),
                 perm=(0, 2, 1, 3))  # fmt: skip
        q, k, v = (
            b.op(f"{name}/{part}", "narrow", (y,), (batch, heads, length, each),
                 dim=3, start=i * each, length=each)
            for i, part in enumerate("qkv")
        )  # fmt: skip
        product = {"transpose_a": False, "alpha": 1.0}
        scores = b.op(f"{name}/scores", "batch_matmul", (q, k), (batch, heads, length, length),
                      transpose_b=True, **product)  # fmt: skip
        weights = b.unary("softmax", scores, f"{name}/softmax")
        mixed = b.op(f"{name}/mixed", "batch_matmul", (weights, v), (batch, heads, length, each),
                     transpose_b=False, **product)  # fmt: skip
        y = b.op(f"{name}/back", "transpose", (mixed,), (batch, length, heads, each),
                 perm=(0, 2, 1, 3))  # fmt: skip
        y = b.op(f"{name}/joined", "reshape", (y,), (batch, length, width),
                 shape=(batch, length, width), batch_attrs={"shape": (1, 0, 0)})  # fmt: skip
        x = b.linear(f"{name}.proj", y, width, bias=False)
    return b.graph(x, "attention")


def mixture(batch: int, length: int, width: int, experts: int, room: int, hidden: int) -> Graph:
    """A linear layer, then experts of two layers each; where tokens go is given.

    Before and after the experts a softmax keeps the width of a token together.
    """
    b = Builder(batch)
    index = (batch, length, 1)
    x = b.linear("first", b.input(0, (batch, length, width)), width)
    x = b.unary("softmax", x, "before")
    where = b.input(1, index, "int64"), b.input(2, index, "int64")
    y = b.op("sent", "moe_dispatch", (x, *where), (experts, batch, room, width),
             experts=experts, capacity=room)  # fmt: skip
    y = b.op("rows", "reshape", (y,), (experts, batch * room, width),
             shape=(experts, batch * room, width), batch_attrs={"shape": (0, 1, 0)})  # fmt: skip
    for name, size in (("up", hidden), ("down", width)):
        weight = b.param(name, (experts, b.shape(y)[-1], size))
        y = b.op(f"{name}/product", "batch_matmul", (y, weight), (experts, batch * room, size),
                 module=name, transpose_a=False, transpose_b=False, alpha=1.0)  # fmt: skip
    y = b.op("places", "reshape", (y,), (experts, batch, room, width),
             shape=(experts, batch, room, width), batch_attrs={"shape": (0, 1, 0, 0)})  # fmt: skip
    out = b.op("back", "moe_combine", (y, *where, b.input(3, index)), (batch, length, width))
    for name in ("sent", "rows", "up/product", "down/product", "places"):  # not their dim 0
        b.tensors[name] = replace(b.tensors[name], batch_dims=(1,))
    return b.graph(b.unary("softmax", out, "after"), "mixture")


def residual(blocks: int, batch: int, width: int) -> Graph:
    """x + fc2(relu(fc1(x))), block after block."""
    b = Builder(batch)
    x = b.input(0, (batch, width))
    for n in range(blocks):
        y = b.unary("relu", b.linear(f"block{n}.fc1", x, 4 * width), f"block{n}/relu")
        y = b.linear(f"block{n}.fc2", y, width)
        x = b.op(f"block{n}/sum", "add_n", (x, y), (batch, width))
    return b.graph(x, "residual")


def gated(batch: int, width: int) -> Graph:
    """fc1(h if 2 h > 0 else 0) with h = fc0(x): what compares h gives it no gradient."""
    b = Builder(batch)
    h = b.linear("fc0", b.input(0, (batch, width)), width)
    twice = b.op("twice", "scalar_mul", (h,), (batch, width), operand=2)
    above = b.op("above", "scalar_logical_greater", (twice,), (batch, width), "bool", operand=0)
    gate = b.op("gate", "cast", (above,), (batch, width), dtype="float32")
    y = b.op("gated", "broadcast_mul", (h, gate), (batch, width))
    return b.graph(b.linear("fc1", y, width), "gated")


def compared(batch: int, width: int) -> Graph:
    """A tensor that a product reads next, and only a comparison later: no gradient from there."""
    b = Builder(batch)
    h = b.linear("fc0", b.input(0, (batch, width)), width)
    y = b.linear("fc2", b.linear("fc1", h, width), width)
    above = b.op("above", "scalar_logical_greater", (h,), (batch, width), "bool", operand=0)
    gate = b.op("gate", "cast", (above,), (batch, width), dtype="float32")
    y = b.op("gated", "broadcast_mul", (b.linear("fc3", y, width), gate), (batch, width))
    return b.graph(y, "compared")


def alike(batch: int, width: int) -> Graph:
    """How alike two dense layers of one are: elimination does not reach it whole."""
    b = Builder(batch)
    x = b.linear("fc", b.input(0, (batch, width)), width)
    sides = {name: b.linear(name, x, width) for name in "ab"}
    sums = {}
    for pair in ("ab", "aa", "bb"):
        both = b.op(pair, "broadcast_mul", tuple(sides[s] for s in pair), (batch, width))
        sums[pair] = b.op(f"sum_{pair}", "reduce_sum", (both,), (batch,), axis=(1,), keepdims=False)
    norm = b.op("norm", "broadcast_mul", (sums["aa"], sums["bb"]), (batch,))
    return b.graph(b.op("out", "broadcast_div", (sums["ab"], norm), (batch,)), "alike")


def tied(batch: int, width: int) -> Graph:
    """One weight used by two products."""
    b = Builder(batch)
    x = b.input(0, (batch, width))
    weight = b.param("weight", (width, width))
    for n in range(2):
        x = b.op(f"use{n}", "matmul", (x, weight), (batch, width), module=f"use{n}",
                 transpose_a=False, transpose_b=False, alpha=1.0)  # fmt: skip
    return b.graph(x, "tied")
