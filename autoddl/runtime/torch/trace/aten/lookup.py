"""Lookups by index."""

from __future__ import annotations

import torch

from ..emit import Emitter, Ref, Unknown
from .table import Args, aten


@aten("embedding")
def embedding(e: Emitter, a: Args) -> Ref:
    """Rows of a table; one of them may get no gradient."""
    weight, indices = e.ref(a["weight"]), e.ref(a["indices"])
    shape = (*indices.shape, weight.shape[1])
    if a["padding_idx"] == -1 and not a["scale_grad_by_freq"]:
        return e.op("gather", [weight, indices], shape, axis=0)
    return e.op(
        "embedding", [weight, indices], shape, padding_idx=a["padding_idx"],
        scale_grad_by_freq=a["scale_grad_by_freq"],
    )  # fmt: skip


@aten("index_select")
def index_select(e: Emitter, a: Args) -> Ref:
    return e.op("gather", [a["self"], a["index"]], *a["out"], axis=a["dim"])


@aten("index")
def index(e: Emitter, a: Args) -> Ref:
    """x[:, i]: of one index tensor alone."""
    given = [(d, i) for d, i in enumerate(a["indices"]) if i is not None]
    x = e.ref(a["self"])
    if len(given) != 1 or e.ref(given[0][1]).dtype == "bool":
        raise Unknown("an index of several tensors, or of booleans")
    dim, indices = given[0]
    if not isinstance(indices, torch.Tensor) or bool((indices < 0).any()):
        size = x.shape[dim]  # it may count from the end
        indices = e.ref(indices)
        low = e.op("scalar_logical_less", [indices], indices.shape, "bool", operand=0)
        indices = e.op(
            "where", [low, e.same("scalar_add", indices, operand=int(size)), indices],
            indices.shape, indices.dtype,
        )  # fmt: skip
        if getattr(size, "exponent", 0):
            e.scales = False
    return e.op("gather", [x, indices], *a["out"], axis=dim)


@aten("gather")
def gather(e: Emitter, a: Args) -> Ref:
    return e.op("dim_gather", [a["self"], a["index"]], *a["out"], dim=a["dim"])


@aten("scatter_add")
def scatter_add(e: Emitter, a: Args) -> Ref:
    inputs = [a["self"], a["index"], a["src"]]
    return e.op("dim_scatter_add", inputs, *a["out"], dim=a["dim"])


@aten("scatter")
def scatter(e: Emitter, a: Args) -> Ref:
    if "src" in a:
        inputs = [a["self"], a["index"], a["src"]]
        return e.op("dim_scatter_update", inputs, *a["out"], dim=a["dim"])
    return e.op(
        "dim_scatter_update_scalar", [a["self"], a["index"]], *a["out"], dim=a["dim"],
        src_scalar=a["value"],
    )  # fmt: skip


@aten("one_hot")
def one_hot(e: Emitter, a: Args) -> Ref:
    given = {
        f"{t}_{v}_value": n for t in ("floating", "integer") for v, n in (("on", 1), ("off", 0))
    }
    shape, dtype = a["out"]
    return e.op("one_hot", [a["self"]], shape, dtype, depth=shape[-1], dtype=dtype, **given)
