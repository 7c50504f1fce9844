"""Builds a `Graph` operator by operator.

A tensor of the graph is a `Ref`. Sizes that follow the batch are `Size`s: whole numbers, for the
example's batch, that know how they grow with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..sbp.layout import ITEM_BYTES, TensorSpec
from .graph import Graph, Op, Tensor

_SOURCES = ("input", "param", "buffer")


class Unknown(ValueError):
    """An operator that has no place in a graph."""


class Follows(Unknown):
    """A value that follows the batch in a way that a graph cannot say."""


class Size(int):
    """A whole number at the example's batch, proportional to the batch to the power `exponent`."""

    exponent: int

    def __new__(cls, value: int, exponent: int) -> Size:
        found = super().__new__(cls, value)
        found.exponent = exponent
        return found


class Factor(float):
    """The same of a number that is not whole."""

    exponent: int

    def __new__(cls, value: float, exponent: int) -> Factor:
        found = super().__new__(cls, value)
        found.exponent = exponent
        return found


@dataclass(frozen=True)
class Ref:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return TensorSpec((), self.dtype).is_float


@dataclass
class GraphBuilder:
    """The operators so far.

    batch:  the example's
    scales: False once something has turned out to follow the batch otherwise
    module: the path of the submodule that the next operators are of
    """

    batch: int
    scales: bool
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    module: str = ""
    _used: dict[str, int] = field(default_factory=dict)
    _reshaped: dict[str, Ref] = field(default_factory=dict)

    def ref(self, x: Any) -> Ref:
        """What an operator reads as a tensor of the graph. `Unknown` if it is none."""
        if not isinstance(x, Ref):
            raise Unknown(f"an argument that is {type(x).__name__}")
        return x

    def op(
        self,
        kind: str,
        inputs: Sequence[Any],
        shape: Sequence[int],
        dtype: str = "",
        /,
        **attrs: Any,
    ) -> Ref:
        """Append an operator with one output of `shape`; the dtype is by default the input's."""
        return self.several(kind, inputs, [(shape, dtype)], **attrs)[0]

    def several(
        self,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[Any, str]],
        /,
        **attrs: Any,
    ) -> list[Ref]:
        """Append an operator with `outputs` of these shapes and dtypes."""
        refs = [self.ref(x) for x in inputs]
        name = self.unique(f"{self.module}/{kind}" if self.module else kind)
        plain, exponents = _attributes(attrs)
        made = []
        for index, (shape, dtype) in enumerate(outputs):
            output = name if len(outputs) == 1 else f"{name}:{index}"
            made.append(self.declare(output, shape, dtype or refs[0].dtype))
        self.ops.append(
            Op(
                name, kind, tuple(r.name for r in refs), tuple(r.name for r in made), plain,
                exponents, module=self.module,
            )
        )  # fmt: skip
        return made

    def source(self, name: str, kind: str, value: Ref, attrs: Mapping[str, Any], path: str) -> None:
        """Append an input, parameter or buffer."""
        self.ops.append(Op(name, kind, (), (value.name,), dict(attrs), module=path))

    def declare(self, name: str, shape: Sequence[int], dtype: str) -> Ref:
        if dtype not in ITEM_BYTES:
            hint = (
                "; a plan has parameters and saved buffers of real numbers: keep "
                "torch.view_as_real of it and take torch.view_as_complex in forward, or register "
                "a buffer with persistent=False"
            )
            raise Unknown(f"{name}, a tensor of {dtype}{hint if 'complex' in dtype else ''}")
        dims = tuple(d for d, n in enumerate(shape) if getattr(n, "exponent", 0) == 1)
        if any(getattr(n, "exponent", 0) not in (0, 1) for n in shape):
            self.scales = False
        self.tensors[name] = Tensor(name, TensorSpec(tuple(map(int, shape)), dtype), dims)
        return Ref(name, tuple(shape), dtype)

    def unique(self, name: str) -> str:
        """`name`, with a number if an operator has it already."""
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return f"{name}_{count}" if count else name

    # ---- what several operators are written in

    def same(self, kind: str, x: Any, /, **attrs: Any) -> Ref:
        """An operator that keeps shape and dtype."""
        x = self.ref(x)
        return self.op(kind, [x], x.shape, **attrs)

    def filled(self, shape: Sequence[int], value: Any, dtype: str) -> Any:
        """A constant of one number."""
        is_float = isinstance(value, float)
        given = {"floating_value": float(value), "integer_value": 0 if is_float else int(value)}
        return self.op(
            "constant", [], shape, dtype, shape=tuple(shape), dtype=dtype,
            is_floating_value=is_float, **given,
        )  # fmt: skip

    def reshaped(self, x: Any, shape: Sequence[int]) -> Ref:
        x = self.ref(x)
        if tuple(x.shape) == tuple(shape):
            return x
        source = self._reshaped.get(x.name)
        if source is not None and _sizes(source.shape) == _sizes(shape):
            return source
        found = self.op("reshape", [x], shape, shape=tuple(shape))
        self._reshaped[found.name] = x
        return found

    def unmerged(self, x: Ref) -> Ref:
        """The rows of a matrix as they were before a reshape put the batch inside another dim.

        Such as positions x batch: this dim could be split by batch only from outside in. [m, k] ->
        [..., k] where m is the product of dims in front of the batch, which do not follow it, and
        of the batch, or of the first part of a dim that does.
        """
        source = self._reshaped.get(x.name)
        if source is None or x.ndim != 2 or getattr(x.shape[0], "exponent", 0) != 1:
            return x
        follows = [power for _, power in _sizes(source.shape)]
        before = source.shape[: follows.index(1)] if 1 in follows else ()
        rows, rest = divmod(x.shape[0], math.prod(before))
        if math.prod(before) == 1 or rest or source.shape[len(before)] % rows:
            return x
        return self.reshaped(source, (*before, Size(rows, 1), x.shape[1]))

    def permuted(self, x: Any, perm: Sequence[int]) -> Ref:
        x = self.ref(x)
        perm = tuple(d % x.ndim for d in perm) if x.ndim else ()
        if perm == tuple(range(x.ndim)):
            return x
        return self.op("transpose", [x], [x.shape[d] for d in perm], perm=perm)

    def swapped(self, x: Any, a: int, b: int) -> Ref:
        """`x` with dims `a` and `b` in each other's place."""
        x = self.ref(x)
        perm = list(range(x.ndim))
        if perm:
            perm[a % x.ndim], perm[b % x.ndim] = perm[b % x.ndim], perm[a % x.ndim]
        return self.permuted(x, perm)

    def expanded(self, x: Any, shape: Sequence[int]) -> Ref:
        x = self.ref(x)
        if tuple(x.shape) == tuple(shape):
            return x
        return self.op("expand", [x], shape, expand_shape=tuple(shape))

    def narrowed(self, x: Any, dim: int, start: int, length: int) -> Ref:
        x = self.ref(x)
        dim %= x.ndim
        if start == 0 and length == x.shape[dim]:
            return x
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        return self.op("narrow", [x], shape, dim=dim, start=start, length=length)

    def cast(self, x: Any, dtype: str) -> Ref:
        x = self.ref(x)
        return x if x.dtype == dtype else self.op("cast", [x], x.shape, dtype, dtype=dtype)

    def sizes(self, indices: Any) -> Sequence[int]:
        """The shape of indices, which may be known already."""
        return self.ref(indices).shape

    def from_start(self, indices: Any, size: int) -> Ref:
        """Indices of which none counts from the end."""
        x = self.ref(indices)
        low = self.op("scalar_logical_less", [x], x.shape, "bool", operand=0)
        return self.op(
            "where", [low, self.same("scalar_add", x, operand=size), x], x.shape, x.dtype
        )

    def steps_along(self, indices: Any, size: int, step: int = 1) -> int | None:
        """The dim, from the last, along which indices are known as 0, step, ... size - step."""
        return None

    def product(self, a: Any, b: Any, *, transpose_b: bool = False) -> Ref:
        """The matrix product of a [..., m, k] and b [..., k, n], whose dims in front broadcast."""
        a, b = self.ref(a), self.ref(b)
        n = b.shape[-2 if transpose_b else -1]
        front = broadcast(a.shape[:-2], b.shape[:-2])
        if a.ndim == b.ndim == 2:
            kind = "matmul"
        else:
            same = tuple(a.shape[:-2]) == tuple(b.shape[:-2])
            kind = "batch_matmul" if same else "broadcast_matmul"
        return self.op(
            kind, [a, b], (*front, a.shape[-2], n), alpha=1.0, transpose_a=False,
            transpose_b=transpose_b,
        )  # fmt: skip

    def sum(self, x: Any, dims: Sequence[int], keep: bool = False) -> Ref:
        x = self.ref(x)
        dims = tuple(sorted(d % x.ndim for d in dims)) if dims else tuple(range(x.ndim))
        return self.op("reduce_sum", [x], left(x.shape, dims, keep), axis=dims, keepdims=keep)

    def mean(self, x: Any, dims: Sequence[int], keep: bool = False) -> Ref:
        x = self.ref(x)
        dims = tuple(sorted(d % x.ndim for d in dims)) if dims else tuple(range(x.ndim))
        return self.op("reduce_mean", [x], left(x.shape, dims, keep), axis=dims, keepdims=keep)

    def graph(self, name: str, outputs: Sequence[Any], loss: Any, framework: str) -> Graph:
        """The finished graph of a model of `framework`."""
        results = tuple(self.ref(x).name for x in outputs)
        scalar = ""
        if loss is not None:
            scalar = self.ref(loss).name
            self.ops.append(Op(self.unique("loss"), "loss", (scalar,), (), module="loss"))
        ops = tuple(self._without_idle_reshapes(results))
        graph = Graph(
            name=name,
            batch=self.batch,
            loss=scalar,
            outputs=results,
            tensors=self.tensors,
            ops=ops,
            framework=framework,
        )
        return finished(graph, self.scales)

    def _without_idle_reshapes(self, results: Sequence[str]) -> list[Op]:
        """The operators but for reshapes that nothing reads."""
        read, kept = set(results), list[Op]()
        for op in reversed(self.ops):
            if op.kind != "reshape" or op.outputs[0] in read:
                read.update(op.inputs)
                kept.append(op)
        return kept[::-1]


def finished(graph: Graph, scales: bool) -> Graph:
    """`graph` in the order that all graphs have, with the tensors that its operators make.

    scales: whether what of it follows the batch does so as it is marked; else nothing is
    """
    # each source before its first reader, as in OneFlow's traces: plans are then for both
    sources = {op.outputs[0]: op for op in graph.ops if op.kind in _SOURCES}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind not in _SOURCES:
            ops += [sources.pop(x) for x in dict.fromkeys(op.inputs) if x in sources]
            ops.append(op)
    ops += sources.values()
    tensors = {name: graph.tensors[name] for op in ops for name in op.outputs}
    if not scales:  # what came before that was seen is marked
        ops = [replace(op, batch_attrs={}) for op in ops]
        tensors = {name: replace(x, batch_dims=()) for name, x in tensors.items()}
    batch = graph.batch if scales else 0
    found = replace(graph, ops=tuple(ops), tensors=tensors, batch=batch)
    found.verify()
    return found


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape that two shapes are stretched to."""
    count = max(len(a), len(b))
    left, right = ((*(1,) * (count - len(s)), *s) for s in (a, b))
    return tuple(m if n == 1 else n for n, m in zip(left, right, strict=True))


def left(shape: Sequence[int], dims: Sequence[int], keep: bool) -> tuple[int, ...]:
    """A shape of which `dims` are reduced."""
    found = (1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)
    return tuple(found)


def _sizes(shape: Sequence[int]) -> list[tuple[int, int]]:
    """The sizes, and how each follows the batch."""
    return [(int(n), getattr(n, "exponent", 0)) for n in shape]


def product(sizes: Iterable[int]) -> int:
    """A size that follows the batch if one of them does."""
    found, power = 1, 0
    for n in sizes:
        found, power = found * int(n), power + getattr(n, "exponent", 0)
    return Size(found, power) if power else found


def _attributes(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Attributes as a graph has them, and how their numbers follow the batch."""
    plain: dict[str, Any] = {}
    exponents: dict[str, tuple[int, ...]] = {}
    for key, value in attrs.items():
        items = value if isinstance(value, (tuple, list)) else (value,)
        powers = tuple(getattr(n, "exponent", 0) for n in items)
        bare = tuple(_bare(n) for n in items)
        plain[key] = bare if isinstance(value, (tuple, list)) else bare[0]
        if any(powers):
            exponents[key] = powers
    return plain, exponents


def _bare(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return int(value) if isinstance(value, int) else float(value)
