"""Functions of each matrix, row or element: some of those that the rule's one form stands for."""

from collections.abc import Callable

import autograd.numpy as np
import numpy

from .case import Arg, case, f, index, out
from .reference import op


def _one(name, args, outs, names, cores, results, **attrs):
    function = attrs.pop("function", name)
    return case(
        name, "batched", args, *outs, function=function, tensors=tuple(names.split()), cores=cores,
        results=results, **attrs,
    )  # fmt: skip


def _spread(*shape):
    """Positive definite matrices, whose eigenvalues are far from each other."""

    def draw(rng, size):
        x = rng.standard_normal(size)
        return x @ np.swapaxes(x, -1, -2) / 4 + np.diag(np.arange(1.0, size[-1] + 1))

    return Arg(f(*shape).spec, draw)


def _apart(*shape):
    """No two elements are equal, or near."""
    return Arg(
        f(*shape).spec, lambda rng, s: rng.permuted(np.linspace(-2, 2, np.prod(s))).reshape(s)
    )


CASES = (
    _one("det", (_spread(4, 6, 3, 3),), (out(4, 6),), "self", (2,), (0,)),
    _one("linalg_cholesky", (_spread(6, 3, 3),), (out(6, 3, 3),), "self", (2,), (2,)),
    _one("linalg_eigh", (_spread(6, 3, 3),), (out(6, 3), out(6, 3, 3)), "self", (2,), (1, 2)),
    _one("linalg_solve", (_spread(6, 3, 3), f(4, 6, 3, 2)), (out(4, 6, 3, 2),), "A B",
         (2, 2), (2,)),
    _one("median", (_apart(4, 6, 5),), (out(4, 6), out(4, 6, dtype="int64")), "self", (1,), (0, 0),
         dim=-1, keepdim=False),
    _one("cummax", (_apart(4, 6, 5),), (out(4, 6, 5), out(4, 6, 5, dtype="int64")), "self", (1,),
         (1, 1), dim=-1),
    _one("logcumsumexp", (f(4, 6, 5),), (out(4, 6, 5),), "self", (1,), (1,), dim=-1),
    _one("scatter_reduce", (_apart(4, 3), index(3, 4, 5), f(4, 5)), (out(4, 3),), "self index src",
         (1, 1, 1), (1,), dim=-1, reduce="sum"),
    _one("hypot", (f(4, 6), f(6)), (out(4, 6),), "self other", (0, 0), (0,)),
    case("", "fft", (f(4, 6, 5), f(4, 6, 5)), out(4, 6, 5), out(4, 6, 5), function="fftn",
         dims=(1, 2), sizes=(6, 5), norm="backward"),
    case("real", "fft", (f(4, 6, 5),), out(4, 6, 4), out(4, 6, 4), function="rfftn", dims=(2,),
         sizes=(6,), norm="ortho"),
    case("back", "fft", (f(4, 6, 4), f(4, 6, 4)), out(4, 6, 7), function="irfftn", dims=(2,),
         sizes=(7,), norm="forward"),
    _one("all", (_apart(4, 6),), (out(),), "self", (2,), (0,), function="median"),
)  # fmt: skip


def _chosen(x, places):
    """Elements of the last dim, so that autograd sees through it."""
    return np.sum(x[..., None, :] * (places[..., None] == np.arange(x.shape[-1])), axis=-1)


def _value(x):
    return getattr(x, "_value", x)


def _middle(x):
    return np.argsort(_value(x), axis=-1)[..., (x.shape[-1] - 1) // 2]


def _cummax(x):
    largest = numpy.maximum.accumulate(_value(x), axis=-1)
    reached = _value(x) == largest
    places = numpy.maximum.accumulate(numpy.where(reached, np.arange(x.shape[-1]), 0), axis=-1)
    return _chosen(x, places), places


def _scattered(x, places, src):
    hit = places[..., None] == np.arange(x.shape[-1])
    return x + np.sum(src[..., None] * hit, axis=-2)


def _solved(a, b):
    return np.matmul(np.linalg.inv(a), b)


def _log_sums(x):
    """Of x up to each place."""
    before = np.tril(np.ones((x.shape[-1],) * 2))
    return np.log(np.sum(np.exp(x)[..., None, :] * before, axis=-1))


def _median(x, along):
    if not along:
        flat = np.reshape(x, (1, -1))
        return (_chosen(flat, _middle(flat)[:, None])[0, 0],)
    places = _middle(x)
    return _chosen(x, places[..., None])[..., 0], places


FUNCTIONS: dict[str, Callable[..., tuple]] = {
    "det": lambda x: (np.linalg.det(x),),
    "linalg_cholesky": lambda x: (np.linalg.cholesky(x),),
    "linalg_eigh": lambda x: tuple(np.linalg.eigh(x)),
    "linalg_solve": lambda a, b: (_solved(a, b),),
    "cummax": _cummax,
    "logcumsumexp": lambda x: (_log_sums(x),),
    "scatter_reduce": lambda x, places, src: (_scattered(x, places, src),),
    "hypot": lambda x, y: (np.sqrt(x * x + y * y),),
}


@op("batched")
def _batched(inputs, attrs, shard):
    if attrs["function"] == "median":
        return _median(inputs[0], "dim" in attrs)
    return FUNCTIONS[attrs["function"]](*inputs)


def _turns(m, n, size, sign):
    """Row by column: the cosines and sines of a Fourier transform."""
    angle = sign * 2 * np.pi * np.arange(m)[:, None] * np.arange(n)[None, :] / size
    return np.cos(angle), np.sin(angle)


@op("fft")
def _fft(inputs, attrs, shard):
    """By the definition, one dim after the other; of a real result, each pair of terms once."""
    real, imag = inputs[0], inputs[1] if len(inputs) > 1 else 0 * inputs[0]
    back = attrs["function"].startswith("i")
    halved = attrs["dims"][-1] if attrs["function"].endswith("rfftn") else None
    for dim, size in zip(attrs["dims"], attrs["sizes"], strict=True):
        real, imag = (np.swapaxes(_sized(x, dim, size, halved), dim, -1) for x in (real, imag))
        given = real.shape[-1]
        made = size // 2 + 1 if dim == halved and not back else size
        cos, sin = _turns(given, made, size, 1 if back else -1)
        if dim == halved and back:
            often = np.array([1.0 if k in (0, size / 2) else 2.0 for k in range(given)])[:, None]
            cos, sin = cos * often, sin * often
        real, imag = real @ cos - imag @ sin, real @ sin + imag @ cos
        real, imag = (np.swapaxes(x, dim, -1) for x in (real, imag))
    count = float(np.prod(attrs["sizes"]))
    whole = {"backward": count if back else 1.0, "ortho": count**0.5,
             "forward": 1.0 if back else count}[attrs["norm"]]  # fmt: skip
    real, imag = real / whole, imag / whole
    return (real,) if back and halved is not None else (real, imag)


def _sized(x, dim, size, halved):
    """Cut to the size, where it is longer."""
    return x[(slice(None),) * dim + (slice(0, size if dim != halved else None),)]
