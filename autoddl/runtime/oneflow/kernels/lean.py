"""Kernels that keep less for their backward pass than OneFlow's autograd does.

The executor runs these in the place of those of the same kinds:

    product   keeps its inputs as they came, where autograd keeps contiguous copies of views
    view      keeps nothing: its input's gradient is its output's in another shape or order
    sum       keeps nothing: its inputs' gradients are its output's, times a number or added up
              where the input was stretched
    times     keeps its inputs

The last two are what most operators of a small model are; a tape for each costs Python 30 us.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import RULES, Attrs, is_matmul
from ...kernel import ByInput, Context, Explicit, Kernel
from ..autograd import detached
from .elementwise import minus, stretched, times
from .product import product_gradient
from .registry import KERNELS


def matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """(a, b) -> alpha a b, either transposed."""
    wanted = [x.requires_grad for x in inputs]
    a, b = map(detached, inputs)
    with flow.no_grad():
        outputs = [_C.matmul(a, b, attrs["transpose_a"], attrs["transpose_b"], attrs["alpha"])]
    if not any(wanted):
        return outputs

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [
            product_gradient(a, b, attrs, dy, index) if wants else None
            for index, wants in enumerate(wanted)
        ]

    return Explicit(outputs, vjp)


def _view(kernel: Kernel, back: Callable[[Tensor, Sequence[int], Attrs], Tensor]) -> Kernel:
    """`kernel` with the gradient `back` (of the output's, the input's shape, the attributes)."""

    def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
        with flow.no_grad():
            result = kernel(ctx, inputs, attrs)
        assert not isinstance(result, Explicit | ByInput)
        shape = tuple(inputs[0].shape)

        def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
            (dy,) = grads
            assert dy is not None
            with flow.no_grad():
                return [back(dy, shape, attrs)]

        return Explicit([detached(y) for y in result], vjp)

    return run


def _reshaped(dy: Tensor, shape: Sequence[int], attrs: Attrs) -> Tensor:
    return dy.reshape(*shape)


def _transposed(dy: Tensor, shape: Sequence[int], attrs: Attrs) -> Tensor:
    perm = [dim % len(shape) for dim in attrs["perm"]]
    return dy.permute(*(perm.index(dim) for dim in range(len(shape))))


# the output's gradient, the inputs if they are kept, the attributes, number -> an input's gradient
Back = Callable[[Tensor, Sequence[Tensor], Attrs, int], Tensor]


@functools.cache
def _stretched(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of `whole` along which an input [shape] was repeated."""
    lead = len(whole) - len(shape)
    pairs = enumerate(zip((1,) * lead + shape, whole, strict=True))
    return tuple(d for d, (n, m) in pairs if d < lead or n != m)


def _gathered(dy: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of an input [shape] that was broadcast, from that of what it became."""
    dims = _stretched(shape, tuple(dy.shape))
    if not dims:
        return dy
    total = _C.reduce_sum(dy, dims, False)
    return total if total.ndim == len(shape) else total.reshape(*shape)


def _explicit(kind: str, back: Back, *, keeps: bool = False) -> Kernel:
    """The kernel of `kind`, whose gradients `back` gives.

    keeps: for `back`, which then takes the output's gradient as it comes; else the inputs are gone
           by then, and it takes what `_gathered` has left of that
    """
    kernel = KERNELS[kind]

    def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
        if any(x.dtype != inputs[0].dtype for x in inputs[1:]):
            result = kernel(ctx, inputs, attrs)  # autograd casts the gradients
            assert not isinstance(result, ByInput)
            return result
        shapes = [tuple(x.shape) if x.requires_grad else None for x in inputs]
        with flow.no_grad():
            result = kernel(ctx, inputs, attrs)
        assert not isinstance(result, Explicit | ByInput)
        kept = inputs if keeps else ()
        del inputs

        def gradient(dy: Tensor, index: int, shape: tuple[int, ...]) -> Tensor:
            if keeps:
                return _gathered(back(dy, kept, attrs, index), shape)
            return back(_gathered(dy, shape), kept, attrs, index)

        def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
            (dy,) = grads
            assert dy is not None
            with flow.no_grad():
                return [
                    None if shape is None else gradient(dy, index, shape)
                    for index, shape in enumerate(shapes)
                ]

        return Explicit(result, vjp)

    return run


def var(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y over the last dim, in two passes; the gradient finds the mean again.

    dx = 2 (x - mean) / (n - unbiased) dy
    """
    (x,) = inputs
    n = x.shape[-1]
    last = [d % x.ndim for d in attrs["dim"]] == [x.ndim - 1] and n > 1
    if ctx.inner is not None or not last or not x.is_floating_point():
        return KERNELS["var"](ctx, inputs, attrs)  # type: ignore[return-value]
    x, count = detached(x), n - int(attrs["unbiased"])

    def centred() -> Tensor:
        return minus(x, _C.reduce_sum(x, (x.ndim - 1,), True) * (1.0 / n))

    with flow.no_grad():
        difference = centred()
        y = _C.reduce_sum(difference * difference, (x.ndim - 1,), attrs["keepdim"]) * (1.0 / count)
        del difference

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        with flow.no_grad():
            return [times(centred(), (dy * (2.0 / count)).reshape(*x.shape[:-1], 1))]

    return Explicit([y], vjp)


def reduce_sum(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y over the last dim; others as OneFlow does it."""
    (x,) = inputs
    if [d % x.ndim for d in attrs["axis"]] != [x.ndim - 1] or x.ndim < 2:
        return KERNELS["reduce_sum"](ctx, inputs, attrs)  # type: ignore[return-value]
    shape = tuple(x.shape)
    with flow.no_grad():
        y = _C.reduce_sum(x, attrs["axis"], attrs["keepdims"])

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        with flow.no_grad():
            return [stretched(dy.reshape(*shape[:-1], 1), shape[-1])]

    return Explicit([y], vjp)


def _subtracted(dy: Tensor, inputs: Sequence[Tensor], attrs: Attrs, index: int) -> Tensor:
    return -dy if index else dy


def _same(dy: Tensor, inputs: Sequence[Tensor], attrs: Attrs, index: int) -> Tensor:
    return dy


_SUMS: dict[str, Back] = {
    "broadcast_add": _same,
    "add_n": _same,
    "scalar_add": _same,
    "broadcast_sub": _subtracted,
    "scalar_mul": lambda dy, inputs, attrs, index: dy * attrs["operand"],
}
_BACK = {"reshape": _reshaped, "transpose": _transposed}
LEAN: dict[str, Kernel] = {
    "var": var,
    "reduce_sum": reduce_sum,
    **dict.fromkeys(filter(is_matmul, RULES), matmul),
    **{
        kind: _view(KERNELS[kind], _BACK[rule.view])
        for kind, rule in RULES.items()
        if rule.view in _BACK
    },
    **{kind: _explicit(kind, back) for kind, back in _SUMS.items()},
    "broadcast_mul": _explicit(
        "broadcast_mul", lambda dy, inputs, attrs, index: times(dy, inputs[1 - index]), keeps=True
    ),
}
