"""Normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown
from .table import Args, aten

_EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}


@aten("layer_norm")
def layer_norm(e: GraphBuilder, a: Args) -> Ref:
    x, weight, bias = e.ref(a["input"]), a["weight"], a["bias"]
    if weight is None and bias is not None:
        raise Unknown("a layer_norm with a bias alone")
    begin = x.ndim - len(a["normalized_shape"])
    given = [x, *(p for p in (weight, bias) if p is not None)]
    return e.op(
        "layer_norm", given, x.shape, begin_norm_axis=begin, begin_params_axis=begin,
        epsilon=float(a["eps"]), scale=weight is not None, center=bias is not None,
    )  # fmt: skip


@aten("rms_norm")
def rms_norm(e: GraphBuilder, a: Args) -> Ref:
    x, weight = e.ref(a["input"]), a["weight"]
    eps = a["eps"] if a["eps"] is not None else _EPS[x.dtype]
    given = [x] if weight is None else [x, weight]
    shape = tuple(map(int, a["normalized_shape"]))
    return e.op("rms_norm", given, x.shape, epsilon=float(eps), normalized_shape=shape)


@aten("group_norm")
def group_norm(e: GraphBuilder, a: Args) -> Ref:
    """Each group's channels are normalised as one dim."""
    x, groups = e.ref(a["input"]), a["num_groups"]
    rows = e.reshaped(x, (x.shape[0], groups, x.shape[1] // groups * _area(x)))
    normal = e.op(
        "layer_norm", [rows], rows.shape, begin_norm_axis=2, begin_params_axis=2,
        epsilon=float(a["eps"]), scale=False, center=False,
    )  # fmt: skip
    y = e.reshaped(normal, x.shape)
    around = (x.shape[1], *(1,) * (x.ndim - 2))
    if a["weight"] is not None:
        y = e.op("broadcast_mul", [y, e.reshaped(a["weight"], around)], x.shape)
    if a["bias"] is not None:
        y = e.op("broadcast_add", [y, e.reshaped(a["bias"], around)], x.shape)
    return y


@aten("instance_norm")
def instance_norm(e: GraphBuilder, a: Args) -> Ref:
    """Each channel of each row by itself."""
    if a["running_mean"] is not None or not a["use_input_stats"]:
        raise Unknown("an instance_norm with running statistics (track_running_stats=True)")
    return group_norm(e, {**a, "num_groups": e.ref(a["input"]).shape[1]})


@aten("_weight_norm_interface", "_weight_norm")
def weight_norm(e: GraphBuilder, a: Args) -> Any:
    """g v / |v|, with the norm over all dims but `dim`; over all, if it is -1."""
    v, dim = e.ref(a["v"]), a["dim"]
    others = [d for d in range(v.ndim) if dim == -1 or d != dim % v.ndim]
    norms = e.same("sqrt", e.sum(e.same("square", v), others, keep=True))
    scale = e.op("broadcast_div", [a["g"], norms], norms.shape)
    w = e.op("broadcast_mul", [v, scale], v.shape)
    return w if a["name"] == "_weight_norm" else (w, None)


def _area(x: Ref) -> int:
    found = 1
    for n in x.shape[2:]:
        found *= n
    return found


@dataclass(frozen=True)
class Moved:
    """Running statistics that a BatchNorm has moved: only the same layer, called again, reads them.

    The runtime moves the buffer itself, so both calls read and move it, one after the other.
    """

    buffer: Any


@aten("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "batch_norm",
      "_native_batch_norm_legit_no_training", "native_batch_norm")  # fmt: skip
def batch_norm(e: GraphBuilder, a: Args) -> Any:
    """The running statistics are changed by the runtime, so the graph gives y alone."""
    x, statistics = e.ref(a["input"]), [a.get("running_mean"), a.get("running_var")]
    trains = bool(a.get("training", False))
    channels = (x.shape[1],)

    def filled(name: str, value: float) -> Ref:
        if a[name] is not None:
            return e.ref(a[name])
        return e.ref(e.filled(channels, value, "float32"))

    moving = [s.buffer if isinstance(s, Moved) else s for s in statistics if s is not None]
    y = e.op(
        "normalization", [x, *moving, filled("weight", 1.0), filled("bias", 0.0)], x.shape,
        axis=1, epsilon=float(a["eps"]), momentum=1 - float(a["momentum"]), training=trains,
    )  # fmt: skip
    return y if a["name"] == "batch_norm" else (y, None, None, *map(Moved, moving))
