"""Lookups of numbers that are known when a model is traced."""

from __future__ import annotations

import torch

from .....graph.aten.table import Args, aten
from .....graph.builder import Ref, Unknown, product
from ..emit import Emitter


@aten("histc")
def histc(e: Emitter, a: Args) -> Ref:
    """How many of some whole numbers are 0, 1, ..., as routers count the tokens of an expert."""
    x, bins = e.ref(a["self"]), a["bins"]
    made = next((op for op in reversed(e.ops) if x.name in op.outputs), None)
    whole = made is not None and made.kind == "cast" and not e.tensors[made.inputs[0]].spec.is_float
    if a["min"] != 0 or a["max"] != bins - 1 or (x.is_float and not whole):
        raise Unknown("a histogram of other numbers than 0, 1, ... bins - 1")
    rows = e.reshaped(x, (product(x.shape), 1))
    numbers = torch.arange(bins, dtype=getattr(torch, x.dtype))
    hits = e.op("broadcast_equal", [rows, numbers], (rows.shape[0], bins), "bool")
    return e.sum(e.cast(hits, a["out"][1]), (0,))
