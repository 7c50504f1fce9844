"""Attention."""

from __future__ import annotations

from typing import Any

import torch

from ....graph.aten.product import dropping
from ....graph.aten.table import Args, aten
from ....graph.builder import Ref, Unknown
from ...tracing.varying import Varying
from .emit import Emitter


@aten("scaled_dot_product_attention")
def attention(e: Emitter, a: Args) -> Ref:
    """softmax(q k^T scale + mask) v; see the rule of `attention`."""
    q, k, v = (e.ref(a[n]) for n in ("query", "key", "value"))
    scale = float(a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5)
    size = q.shape[-2], k.shape[-2]
    mask, causal = _seen(a["attn_mask"], bool(a["is_causal"]), size, e.batch)
    if not q.ndim == k.ndim == v.ndim == 4:
        if not q.ndim == k.ndim == v.ndim == 3 or (mask is not None and mask.ndim > 2):
            raise Unknown("attention of tensors that are not [batch, heads, rows, width]")
        rows = {n: e.reshaped(x, (x.shape[0], 1, *x.shape[1:])) for n, x in
                (("query", q), ("key", k), ("value", v))}  # fmt: skip
        return e.reshaped(attention(e, {**a, **rows, "scale": scale}), a["out"][0])
    shape = (*q.shape[:-1], v.shape[-1])
    e.drops |= bool(a["dropout_p"])
    if a["dropout_p"] or e.like and e.like.drops:
        far = ~torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril() if causal else None
        return dropping(e, a, (q, k, v), mask, far)
    given = [q, k, v] if mask is None else [q, k, v, mask]
    return e.op("attention", given, shape, causal=causal, scale=scale)


def _seen(mask: Any, causal: bool, size: tuple[int, int], batch: int) -> tuple[Any, bool]:
    """The mask, and whether attention is causal; what a known mask says is said without it."""
    if mask is None or isinstance(mask, Ref):
        return mask, causal
    known = mask.stretched(batch)[0] if isinstance(mask, Varying) else mask
    if known.dtype == torch.bool:
        seen = known
    else:
        seen = known == 0
        if not bool((seen | (known <= torch.finfo(known.dtype).min)).all()):
            return mask, causal
    rows = torch.ones(size, dtype=torch.bool).tril()
    if bool(seen.all()):
        return None, causal
    if seen.shape[-2:] == rows.shape and bool((seen == rows).all()):
        return None, True
    return mask, causal
