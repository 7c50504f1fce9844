"""Matrix products (AutoDDL section 4.2): rows, columns or the summed dim are split; and what else
is done with matrices, each of which stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..signature import OpSpec, Signature, rule
from .build import broadcast_labels, dims_of, drop, labelled


def _summed_size(op: OpSpec) -> int:
    return op.inputs[0].shape[-2 if op.attrs.get("transpose_a") else -1]


def product_flops(op: OpSpec) -> float:
    """A multiplication and an addition per output element and summed index: 2 M N K."""
    return 2.0 * op.outputs[0].numel * _summed_size(op)


def _loops(op: OpSpec) -> tuple[Sequence[str], str]:
    return (*("matrices",) * (len(op.outputs[0].shape) - 2), "rows", "out"), "in"


@rule(
    "matmul", "broadcast_matmul", "batch_matmul",
    flops=product_flops, heavy=True, loops=_loops, product="matmul", saves="other",
)  # fmt: skip
def matmul(op: OpSpec) -> Iterator[Signature]:
    """(a [..., m, k], b [..., k, n]) -> out [..., m, n]; batch dims broadcast."""
    out = op.outputs[0].shape
    batch, m, n = out[:-2], len(out) - 2, len(out) - 1
    a = (*broadcast_labels(op.inputs[0].shape[:-2], batch), m, "k")
    b = (*broadcast_labels(op.inputs[1].shape[:-2], batch), "k", n)
    if op.attrs.get("transpose_a"):
        a = (*a[:-2], a[-1], a[-2])
    if op.attrs.get("transpose_b"):
        b = (*b[:-2], b[-1], b[-2])
    yield from labelled(op, (a, b), (range(len(out)),), linear=((0,), (1,)))


@rule("matrix_vector_product", flops=product_flops, heavy=True, saves="other")
def matrix_vector_product(op: OpSpec) -> Iterator[Signature]:
    """(a [m, k], b [k]) -> out [m]."""
    yield from labelled(op, (("m", "k"), ("k",)), (("m",),), linear=((0,), (1,)))


@rule("vector_matrix_product", flops=product_flops, heavy=True, saves="other")
def vector_matrix_product(op: OpSpec) -> Iterator[Signature]:
    """(a [k], b [k, n]) -> out [n]."""
    yield from labelled(op, (("k",), ("k", "n")), (("n",),), linear=((0,), (1,)))


def _dot_flops(op: OpSpec) -> float:
    return 2.0 * math.prod(op.inputs[0].shape)


@rule("dot", flops=_dot_flops, saves="other")
def dot(op: OpSpec) -> Iterator[Signature]:
    """(x [k], y [k]) -> out []."""
    yield from labelled(op, (("k",), ("k",)), ((),), linear=((0,), (1,)))


@rule("linalg_cross", saves="all")
def cross(op: OpSpec) -> Iterator[Signature]:
    """(x, y) -> out: vectors along `dim`, which stays whole."""
    out = op.outputs[0].shape
    dim = op.attrs["dim"] % len(out)
    ins = [drop(broadcast_labels(t.shape, out), dim) for t in op.inputs]
    yield from labelled(op, ins, (drop(dims_of(out), dim),), linear=((0,), (1,)))


def _inverse_flops(op: OpSpec) -> float:
    return 2.0 * op.inputs[0].numel * op.inputs[0].shape[-1]


@rule("inv", flops=_inverse_flops, saves="all")
def inverse(op: OpSpec) -> Iterator[Signature]:
    """x [..., m, m] -> y; each matrix stays whole."""
    rows = dims_of(op.inputs[0].shape)[:-2]
    yield from labelled(op, ((*rows, None, None),), ((*rows, None, None),))


def _batched_flops(op: OpSpec) -> float:
    """Of a decomposition: twice the size of a matrix times its rows; else an operation a number."""
    first, core = op.inputs[0], op.attrs["cores"][0]
    return 2.0 * first.numel * first.shape[-1] if core == 2 else float(first.numel)


@rule("batched", flops=_batched_flops, saves="all", float32=True)
def batched(op: OpSpec) -> Iterator[Signature]:
    """(x0, x1, ...) -> (y0, ...): a function of each matrix, row or element by itself.

    As in NumPy's generalized ufuncs, `function` takes the last `cores[i]` dims of input i whole and
    gives `results[j]` dims of output j; the dims before them run together, stretched as in
    broadcasting. So one rule does for decompositions, order statistics and functions of an element
    that nothing else needs; nothing is known of the function itself.
    """
    results = op.attrs["results"]
    (rows,) = {t.shape[: len(t.shape) - n] for t, n in zip(op.outputs, results, strict=True)}
    ins = [
        (*broadcast_labels(t.shape[: len(t.shape) - n], rows), *(None,) * n)
        for t, n in zip(op.inputs, op.attrs["cores"], strict=True)
    ]
    yield from labelled(op, ins, [(*dims_of(rows), *(None,) * n) for n in results])


def _fft_flops(op: OpSpec) -> float:
    """5 n log n of the longer side, as that of Cooley and Tukey."""
    longer = max(op.inputs[0].numel, op.outputs[0].numel)
    return 5.0 * longer * math.log2(max(2, math.prod(op.attrs["sizes"])))


@rule("fft", flops=_fft_flops, saves="x0 x1", float32=True)
def fft(op: OpSpec) -> Iterator[Signature]:
    """(real, imaginary?) -> real, imaginary?: a Fourier transform of `dims`, which stay whole."""
    free = drop(dims_of(op.inputs[0].shape), *op.attrs["dims"])
    every = range(len(op.inputs))
    yield from labelled(op, (free,) * len(every), (free,) * len(op.outputs), linear=(every,))
