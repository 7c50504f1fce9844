"""Pooling, upsampling, padding, and images in patches or at points that are given."""

import itertools
import math

import autograd.numpy as np

from autoddl.sbp.layout import TensorSpec

from .case import Arg, case, f, out
from .conv import pad_window, windows
from .reference import op

WINDOW = {
    "ceil_mode": False, "data_format": "channels_first", "kernel_size": (2, 2),
    "padding": (0, 0), "stride": (2, 2),
}  # fmt: skip
MAX = {"dilation": (1, 1), "return_indices": False}
AVG = {"count_include_pad": True, "divisor_override": 0}
PADDED = {"kernel_size": (3, 3), "padding": (1, 1)}
SCALES = {"data_format": "channels_first", "height_scale": 2.0, "width_scale": 2.0,
          "output_size": ()}  # fmt: skip
LINE = {"data_format": "channels_first", "output_size": (), "scale_factor": 2.0}
OWN = ("reflection", "replication")
PATCH = {"data_format": "channels_first", "dilation_rate": (1, 2), "kernel_size": (2, 2),
          "padding": (0, 0), "strides": (1, 1)}  # fmt: skip
ROW = {"kernel_size": (2,), "padding": (0,), "stride": (2,), "dilation": (1,)}
BLOCK = {"kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3, "dilation": (1,) * 3}


def places(*shape):
    """Numbers of elements in an image that are twice as large, no two the same."""
    whole, count = math.prod(2 * n for n in shape[2:]), math.prod(shape[2:])

    def draw(rng, s):
        each = [rng.permutation(whole)[:count] for _ in range(s[0] * s[1])]
        return np.array(each).reshape(s)

    return Arg(TensorSpec(shape, "int64"), draw)


CASES = (
    case("", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **MAX),
    case("padded", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **MAX),
    case("", "max_pool_2d_indices", (f(4, 6, 6, 8),), out(4, 6, 3, 4, dtype="int64"),
         **{**WINDOW, **PADDED}, **MAX),
    case("", "max_pool_1d_indices", (f(4, 6, 8),), out(4, 6, 4, dtype="int64"),
         **{**WINDOW, **ROW}),
    case("", "max_pool_3d_indices", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1, dtype="int64"),
         **{**WINDOW, **BLOCK}),
    case("", "max_unpool_2d", (f(4, 6, 3, 2), places(4, 6, 3, 2)), out(4, 6, 6, 4), **WINDOW),
    case("", "max_unpool_1d", (f(4, 6, 4), places(4, 6, 4)), out(4, 6, 8), **{**WINDOW, **ROW}),
    case("", "max_unpool_3d", (f(2, 4, 2, 3, 1), places(2, 4, 2, 3, 1)), out(2, 4, 4, 6, 2),
         **{**WINDOW, **BLOCK}),
    case("", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **AVG),
    case("padded", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **AVG),
    case("", "avg_pool_1d", (f(4, 6, 8),), out(4, 6, 4), **AVG,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,)}),
    case("", "avg_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), **AVG,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3}),
    case("", "max_pool_1d", (f(4, 6, 8),), out(4, 6, 4), return_indices=False,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,), "dilation": (1,)}),
    case("", "max_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), return_indices=False,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3,
            "dilation": (1,) * 3}),
    case("", "adaptive_avg_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("", "adaptive_max_pool1d", (f(4, 6, 8),), out(4, 6, 2), output_size=(2,)),
    case("", "adaptive_max_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("whole", "adaptive_avg_pool2d", (f(4, 6, 2, 8),), out(4, 6, 1, 1), output_size=(1, 1)),
    case("uneven", "adaptive_avg_pool2d", (f(4, 6, 5, 8),), out(4, 6, 2, 3), output_size=(2, 3)),
    case("", "adaptive_avg_pool1d", (f(4, 6, 8),), out(4, 6, 1), output_size=(1,)),
    case("", "adaptive_max_pool2d", (f(4, 6, 4, 8),), out(4, 6, 2, 2), output_size=(2, 2)),
    case("", "upsample_nearest_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), **SCALES),
    case("", "upsample_bilinear_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4),
         align_corners=False, **SCALES),
    case("", "upsample_nearest_1d", (f(4, 6, 5),), out(4, 6, 10), **LINE),
    case("", "upsample_linear_1d", (f(4, 6, 5),), out(4, 6, 10), align_corners=False, **LINE),
    case("", "upsample_bicubic_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), align_corners=False,
         **SCALES),
    case("", "upsample_nearest_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         **SCALES),
    case("", "upsample_trilinear_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         align_corners=False, **SCALES),
    *(case("", f"{mode}_pad1d", (f(4, 6, 5),), out(4, 6, 8), padding=(1, 2)) for mode in OWN),
    *(case("", f"{mode}_pad2d", (f(4, 6, 3, 5),), out(4, 6, 4, 8), padding=(1, 2, 0, 1))
      for mode in OWN),
    case("", "unfold", (f(4, 6, 5, 4),), out(4, 24, 8), **PATCH),
    case("overlapping", "unfold", (f(4, 6, 3, 2),), out(4, 24, 8),
         **{**PATCH, "strides": (1, 1), "padding": (1, 1)}),
    case("", "fold", (f(4, 24, 8),), out(4, 6, 5, 4), output_size=(5, 4), **PATCH),
    case("overlapping", "fold", (f(4, 24, 8),), out(4, 6, 3, 2), output_size=(3, 2),
         **{**PATCH, "strides": (1, 1), "padding": (1, 1)}),
    case("", "grid_sample", (f(4, 6, 3, 5), f(4, 8, 12, 2)), out(4, 6, 8, 12),
         align_corners=False, interpolation_mode="bilinear", padding_mode="zeros"),
    case("", "affine_grid", (f(6, 2, 3),), out(6, 3, 5, 2), align_corners=False,
         size=(6, 4, 3, 5)),
    case("", "pad", (f(4, 6, 3, 2),), out(4, 6, 5, 2), padding=(0, 0, 1, 1),
         padding_before=(0, 0, 1, 0), padding_after=(0, 0, 1, 0), floating_constant_value=0.0,
         integral_constant_value=0),
    case("value", "pad", (f(4, 6),), out(4, 9), padding=(1, 2), padding_before=(0, 1),
         padding_after=(0, 2), floating_constant_value=0.5, integral_constant_value=0),
)  # fmt: skip


def _pool(reduce, fill):
    def run(inputs, attrs, shard):
        x = pad_window(inputs[0], attrs["padding"], fill)
        dilation = attrs.get("dilation", (1,) * len(attrs["stride"]))
        return (reduce(windows(x, attrs["kernel_size"], attrs["stride"], dilation)),)

    return run


op(*(f"max_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.max(w, axis=0), -1e30))


@op(*(f"max_pool_{n}d_indices" for n in (1, 2, 3)))
def _max_pool_indices(inputs, attrs, shard):
    x, padding = np.array(getattr(inputs[0], "_value", inputs[0])), attrs["padding"]
    size = x.shape[2:]
    taken = attrs["kernel_size"], attrs["stride"], attrs["dilation"]
    numbers = np.broadcast_to(np.arange(math.prod(size)).reshape(size), x.shape)
    values = windows(pad_window(x, padding, -1e30), *taken)
    numbers = windows(pad_window(numbers, padding, -1), *taken)
    return (np.take_along_axis(numbers, np.argmax(values, axis=0)[None], axis=0)[0],)


@op(*(f"max_unpool_{n}d" for n in (1, 2, 3)))
def _max_unpool(inputs, attrs, shard):
    x, indices = inputs
    size = shard.op.outputs[0].shape[2:]
    rows = x.shape[:2]
    hits = indices.reshape(*rows, -1, 1) == np.arange(math.prod(size))
    return (np.sum(x.reshape(*rows, -1, 1) * hits, axis=2).reshape(*rows, *size),)


op(*(f"avg_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.mean(w, axis=0), 0.0))


def _adaptive(reduce):
    def run(inputs, attrs, shard):
        (x,), size = inputs, attrs["output_size"]
        spans = [
            [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            for n, m in zip(x.shape[-len(size) :], size, strict=True)
        ]
        over = tuple(range(-len(size), 0))
        cells = [
            reduce(x[(..., *(slice(*span) for span in cell))], over)
            for cell in itertools.product(*spans)
        ]
        return (np.stack(cells, axis=-1).reshape((*x.shape[: -len(size)], *size)),)

    return run


op(*(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.mean(x, axis=over)))
op(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.max(x, axis=over)))


def _linear(n, scale):
    """[n * scale, n]: the weights with which the sources make up each target."""
    where = np.clip((np.arange(int(n * scale)) + 0.5) / scale - 0.5, 0, n - 1)
    return np.maximum(0, 1 - np.abs(where[:, None] - np.arange(n)[None, :]))


def _nearest(n, scale):
    where = np.floor(np.arange(int(n * scale)) / scale)
    return (where[:, None] == np.arange(n)[None, :]) * 1.0


def _cubic(n, scale):
    """Keys' kernel with a = -0.75; sources beyond the edge are those at the edge."""
    where = (np.arange(int(n * scale)) + 0.5) / scale - 0.5
    weights = np.zeros((len(where), n))
    for shift in range(-1, 3):
        source = np.floor(where) + shift
        d = np.abs(where - source)
        near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        at = np.clip(source, 0, n - 1)[:, None] == np.arange(n)
        weights += at * np.where(d <= 1, near, far)[:, None]
    return weights


def _upsample(weights):
    def run(inputs, attrs, shard):
        (x,) = inputs
        scales = [attrs[name] for name in _SCALES if name in attrs]
        for dim, scale in enumerate(scales, start=2):
            resized = np.tensordot(x, weights(x.shape[dim], scale), axes=((dim,), (1,)))
            x = np.moveaxis(resized, -1, dim)
        return (x,)

    return run


_SCALES = ("scale_factor", "depth_scale", "height_scale", "width_scale")
op(*(f"upsample_nearest_{n}d" for n in (1, 2, 3)))(_upsample(_nearest))
op("upsample_linear_1d", "upsample_bilinear_2d", "upsample_trilinear_3d")(_upsample(_linear))
op("upsample_bicubic_2d")(_upsample(_cubic))


def _taken(mode):
    """Padding with elements of the tensor itself: each output element's place in it."""

    def run(inputs, attrs, shard):
        (x,) = inputs
        before_after = np.reshape(attrs["padding"], (-1, 2))[::-1]  # counted from the last dim
        for dim, widths in enumerate(before_after, start=x.ndim - len(before_after)):
            places = np.pad(np.arange(x.shape[dim]), tuple(widths), mode=mode)
            x = x[(slice(None),) * dim + (places,)]
        return (x,)

    return run


op("reflection_pad1d", "reflection_pad2d")(_taken("reflect"))
op("replication_pad1d", "replication_pad2d")(_taken("edge"))


@op("pad")
def _pad(inputs, attrs, shard):
    widths = list(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
    value = attrs["floating_constant_value"]
    return (np.pad(inputs[0], widths, mode="constant", constant_values=value),)


def _patches_of(x, attrs):
    met = windows(
        pad_window(x, attrs["padding"], 0.0),
        attrs["kernel_size"], attrs["strides"], attrs["dilation_rate"],
    )  # fmt: skip
    return np.moveaxis(met, 0, 2).reshape((x.shape[0], -1, math.prod(met.shape[3:])))


@op("unfold")
def _unfold(inputs, attrs, shard):
    return (_patches_of(inputs[0], attrs),)


@op("fold")
def _fold(inputs, attrs, shard):
    """The transpose of `unfold`: patches add up where they overlap."""
    (x,), size = inputs, attrs["output_size"]
    pixels = np.eye(math.prod(size)).reshape((-1, 1, *size))
    whence = _patches_of(pixels, attrs)  # [pixel, tap, place]
    x = x.reshape((x.shape[0], -1, *whence.shape[1:]))
    return (np.einsum("nctl,ptl->ncp", x, whence).reshape((*x.shape[:2], *size)),)


@op("grid_sample")
def _grid_sample(inputs, attrs, shard):
    """Bilinear, zero beyond the edge; -1 and 1 are the outer edges of the first and last pixels."""
    x, grid = inputs
    rows, columns = (
        np.maximum(0, 1 - np.abs(((at + 1) * n - 1)[..., None] / 2 - np.arange(n)))
        for at, n in ((grid[..., 1], x.shape[2]), (grid[..., 0], x.shape[3]))
    )
    return (np.einsum("nchw,nijh,nijw->ncij", x, rows, columns),)


@op("affine_grid")
def _affine_grid(inputs, attrs, shard):
    (theta,), (rows, _, height, width) = inputs, attrs["size"]
    assert rows == len(theta)
    y, x = ((2 * np.arange(n) + 1) / n - 1 for n in (height, width))
    base = np.stack([*np.meshgrid(x, y), np.ones((height, width))], axis=-1)
    return (np.einsum("hwk,nck->nhwc", base, theta),)
