"""Complex numbers: a graph has their real and imaginary parts, each a tensor of floats.

So gradients are those of the parts, which is what autograd gives for a loss that is real. What is
linear is done to both parts, a product of two as (a + bi)(c + di), and a Fourier transform is one
operator of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown
from .reduce import root
from .table import HANDLERS, Args, Handler, aten

_FLOATS = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
# what is done to each part by itself
_LINEAR = {
    "view", "reshape", "_unsafe_view", "view_copy", "flatten", "unflatten", "unsqueeze",
    "unsqueeze_copy", "squeeze", "squeeze_copy", "_reshape_copy", "ravel", "transpose",
    "transpose_copy", "swapaxes", "t", "t_copy", "numpy_T", "mT", "permute", "permute_copy",
    "movedim", "expand", "expand_copy", "expand_as", "broadcast_to", "repeat", "select",
    "select_copy", "narrow", "slice", "slice_copy", "diagonal", "diagonal_copy", "slice_scatter",
    "select_scatter", "split", "chunk", "unbind", "split_with_sizes", "cat", "concat", "stack",
    "roll", "flip", "tril", "triu", "clone", "contiguous", "alias", "detach", "copy", "neg", "sum",
    "mean", "cumsum", "index_select", "gather",
}  # fmt: skip
_PRODUCTS = {
    "mul": ("self", "other"), "multiply": ("self", "other"), "matmul": ("self", "other"),
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "linear": ("input", "weight"),
}  # fmt: skip


@dataclass(frozen=True)
class Complex:
    """What stands for a complex tensor of a program."""

    real: Any
    imag: Any


def called(e: GraphBuilder, a: Args) -> Any:
    """What an operator gives; the handlers know those of complex numbers that are named here."""
    name, own = a["name"], {k: v for k, v in a.items() if k not in ("out", "name")}
    if not _has_complex([*own.values()]) and "complex" not in str(a["out"]):
        return HANDLERS[name](e, a)
    if name in _OWN:
        return HANDLERS[name](e, a)
    real = {**own, "name": name, "out": _floats(a["out"])}
    if name in _LINEAR:
        both = [HANDLERS[name](e, _parts_in(e, real, part)) for part in ("real", "imag")]
        if isinstance(both[0], (list, tuple)):
            return [Complex(*pair) for pair in zip(*both, strict=True)]
        return Complex(*both)
    if name in ("add", "sub", "rsub") and not isinstance(a["alpha"], complex):
        x, y = (_parts(e, a[k]) for k in ("self", "other"))
        return Complex(*(_sum(e, real, getattr(x, n), getattr(y, n)) for n in ("real", "imag")))
    if name == "einsum" and len(a["tensors"]) == 2:
        pair = [_parts(e, x) for x in a["tensors"]]
        return _product(e, pair, lambda x, y: HANDLERS[name](e, {**real, "tensors": [x, y]}))
    if name in _PRODUCTS and a.get("bias") is None:
        first, second = _PRODUCTS[name]
        pair = [_parts(e, a[first]), _parts(e, a[second])]
        return _product(e, pair, lambda x, y: HANDLERS[name](e, {**real, first: x, second: y}))
    if name in _FORMULAS and not a.get("rounding_mode"):
        return _FORMULAS[name](e, real)
    raise Unknown(f"{name} of complex numbers")


def _is_complex(x: Any) -> bool:
    asked = getattr(x, "is_complex", None)  # of a known tensor
    return isinstance(x, (Complex, complex)) or callable(asked) and bool(asked())


def _has_complex(x: Any) -> bool:
    return any(map(_has_complex, x)) if isinstance(x, (list, tuple)) else _is_complex(x)


def _floats(out: Any) -> Any:
    """Shapes and dtypes of the parts of results."""
    if isinstance(out, list):
        return [_floats(x) for x in out]
    return out if out is None else (out[0], _FLOATS.get(out[1], out[1]))


def _parts(e: GraphBuilder, x: Any) -> Complex:
    """Of what is real, the imaginary part is None."""
    return Complex(x.real, x.imag) if _is_complex(x) else Complex(x, None)


def _parts_in(e: GraphBuilder, x: Any, part: str) -> Any:
    """Arguments with one part in the place of each complex one; a real tensor has zeros as one."""
    if isinstance(x, dict):
        return {k: v if k == "out" else _parts_in(e, v, part) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_parts_in(e, item, part) for item in x]
    if _is_complex(x):
        return getattr(x, part)
    if part == "imag" and isinstance(x, Ref) and x.is_float:
        return e.filled(x.shape, 0.0, x.dtype)
    return x


def _sum(e: GraphBuilder, a: Args, x: Any, y: Any) -> Any:
    """x ± y, of which None is zero."""
    if x is None or y is None:
        zero = e.filled(a["out"][0], 0.0, a["out"][1])
        x, y = (zero if z is None else z for z in (x, y))
    return HANDLERS[a["name"]](e, {**a, "self": x, "other": y})


def _quotient(e: GraphBuilder, a: Args) -> Complex:
    """x / y, with y's conjugate above and below if y is complex."""
    x, y = a["self"], a["other"]
    if isinstance(y, complex):
        return called(e, {**a, "name": "mul", "other": 1 / y})
    if not _is_complex(y):
        parts = (HANDLERS["div"](e, {**a, "self": part}) for part in (x.real, x.imag))
        return Complex(*parts)
    turned = Complex(y.real, e.same("negative", y.imag))
    top = called(e, {**a, "name": "mul", "other": turned})
    return _quotient(e, {**a, "self": top, "other": _size(e, y)})


def _inverse(e: GraphBuilder, a: Args) -> Complex:
    x = a["self"]
    parts = x.real, e.same("negative", x.imag)
    size = _size(e, x)
    return Complex(*(e.op("broadcast_div", [part, size], size.shape) for part in parts))


def _exponential(e: GraphBuilder, a: Args) -> Complex:
    """exp(x) (cos y + i sin y)."""
    x = a["self"]
    return polar(e, {**a, "abs": e.same("exp", x.real), "angle": x.imag})


def _size(e: GraphBuilder, x: Complex) -> Ref:
    """The square of its modulus."""
    squares = [e.same("square", part) for part in (x.real, x.imag)]
    return e.op("add_n", squares, squares[0].shape)


def _product(e: GraphBuilder, pair: Sequence[Complex], times: Any) -> Complex:
    x, y = pair
    if x.imag is None or y.imag is None:
        one, other = (times(x.real, y.real), times(x.real, y.imag) if x.imag is None else
                      times(x.imag, y.real))  # fmt: skip
        return Complex(one, other)
    real = [times(x.real, y.real), times(x.imag, y.imag)]
    imag = [times(x.real, y.imag), times(x.imag, y.real)]
    shape = real[0].shape
    return Complex(e.op("broadcast_sub", real, shape), e.op("add_n", imag, shape))


@aten("view_as_real")
def as_real(e: GraphBuilder, a: Args) -> Ref:
    x, shape = a["self"], a["out"][0]
    return e.op("stack", [x.real, x.imag], shape, axis=len(shape) - 1)


@aten("view_as_complex")
def as_complex(e: GraphBuilder, a: Args) -> Complex:
    x = e.ref(a["self"])
    each = (e.narrowed(x, x.ndim - 1, n, 1) for n in range(2))
    return Complex(*(e.reshaped(part, x.shape[:-1]) for part in each))


@aten("complex")
def of_parts(e: GraphBuilder, a: Args) -> Complex:
    return Complex(*(e.expanded(a[name], a["out"][0]) for name in ("real", "imag")))


@aten("polar")
def polar(e: GraphBuilder, a: Args) -> Complex:
    shape = a["out"][0]
    turns = (e.same(kind, a["angle"]) for kind in ("cos", "sin"))
    return Complex(*(e.op("broadcast_mul", [a["abs"], turn], shape) for turn in turns))


@aten("real", "imag")
def part_of(e: GraphBuilder, a: Args) -> Any:
    return getattr(a["self"], a["name"])


@aten("conj", "_conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg")
def conjugate(e: GraphBuilder, a: Args) -> Any:
    x = a["self"]
    if a["name"].startswith("resolve") or not _is_complex(x):
        return x
    return Complex(x.real, e.same("negative", x.imag))


@aten("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_fft2", "fft_ifft2", "fft_rfft2",
      "fft_irfft2", "fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn")  # fmt: skip
def fourier(e: GraphBuilder, a: Args) -> Any:
    """A Fourier transform of some dims, as that of many dims."""
    x, (shape, dtype) = _parts(e, a["self"]), _floats(a["out"])
    given = [e.ref(part) for part in (x.real, x.imag) if part is not None]
    if not given[0].is_float:
        given[0] = e.cast(given[0], dtype)
    ndim, name = given[0].ndim, a["name"].removeprefix("fft_").rstrip("2n") + "n"
    dims, sizes = a["dim"], a["s"] if "s" in a else a["n"]
    if dims is None:
        dims = range(ndim if sizes is None else ndim - len(sizes), ndim)
    dims = tuple(d % ndim for d in ((dims,) if isinstance(dims, int) else dims))
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    sizes = sizes or [given[0].shape[d] for d in dims]
    if name == "irfftn":
        sizes = [shape[d] for d in dims]
    elif min(sizes) < 0 or {getattr(n, "exponent", 0) for n in sizes} != {0}:
        raise Unknown("a Fourier transform over the batch")
    found = e.several(
        "fft", given, [(shape, dtype)] * (1 if name == "irfftn" else 2), function=name, dims=dims,
        sizes=tuple(sizes), norm=a["norm"] or "backward",
    )  # fmt: skip
    return found[0] if name == "irfftn" else Complex(*found)


def _modulus(e: GraphBuilder, a: Args) -> Ref:
    """Its gradient at 0 is 0."""
    return root(e, _size(e, a["self"]))


_FORMULAS: dict[str, Handler] = {
    "div": _quotient, "true_divide": _quotient, "reciprocal": _inverse, "exp": _exponential,
    "abs": _modulus,
}  # fmt: skip
_OWN = {name for name, handler in HANDLERS.items() if handler.__module__ == __name__}
