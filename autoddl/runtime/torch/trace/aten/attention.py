"""Attention."""

from __future__ import annotations

from typing import Any

import torch

from .....graph.aten.shape import repeat_interleave
from .....graph.aten.table import Args, aten
from .....graph.builder import Ref, Unknown
from ..constants import Varying
from ..emit import Emitter


@aten("scaled_dot_product_attention")
def attention(e: Emitter, a: Args) -> Ref:
    """softmax(q k^T scale + mask) v; see the rule of `attention`."""
    q, k, v = (e.ref(a[n]) for n in ("query", "key", "value"))
    scale = float(a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5)
    mask, causal = _seen(a["attn_mask"], bool(a["is_causal"]), (q.shape[-2], k.shape[-2]))
    if not q.ndim == k.ndim == v.ndim == 4:
        if not q.ndim == k.ndim == v.ndim == 3 or (mask is not None and mask.ndim > 2):
            raise Unknown("attention of tensors that are not [batch, heads, rows, width]")
        rows = {n: e.reshaped(x, (x.shape[0], 1, *x.shape[1:])) for n, x in
                (("query", q), ("key", k), ("value", v))}  # fmt: skip
        return e.reshaped(attention(e, {**a, **rows, "scale": scale}), a["out"][0])
    shape = (*q.shape[:-1], v.shape[-1])
    if a["dropout_p"]:
        return _dropping(e, a, q, k, v, mask, causal)
    given = [q, k, v] if mask is None else [q, k, v, mask]
    return e.op("attention", given, shape, causal=causal, scale=scale)


def _seen(mask: Any, causal: bool, size: tuple[int, int]) -> tuple[Any, bool]:
    """The mask, and whether attention is causal; what a known mask says is said without it."""
    if mask is None or isinstance(mask, Ref):
        return mask, causal
    known = mask.values[0] if isinstance(mask, Varying) else mask
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


def _dropping(e: Emitter, a: Args, q: Ref, k: Ref, v: Ref, mask: Any, causal: bool) -> Ref:
    """Attention that drops some of its weights, step by step."""
    times = q.shape[1] // k.shape[1]
    if times > 1:
        many = {"dim": 1, "repeats": times}
        k, v = (
            repeat_interleave(
                e, {**many, "self": x, "out": ((*x.shape[:1], q.shape[1], *x.shape[2:]),)}
            )
            for x in (k, v)
        )
    scale = a["scale"] if a["scale"] is not None else q.shape[-1] ** -0.5
    scores = e.product(e.same("scalar_mul", q, operand=float(scale)), k, transpose_b=True)
    hidden = float("-inf")
    if causal:
        far = ~torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        scores = e.op("masked_fill", [scores, far], scores.shape, operand=hidden)
    if mask is not None and e.ref(mask).dtype == "bool":
        far = e.op("logical_not", [mask], e.ref(mask).shape)
        scores = e.op("masked_fill", [scores, far], scores.shape, operand=hidden)
    elif mask is not None:
        scores = e.op("broadcast_add", [scores, mask], scores.shape)
    weights = e.same("dropout", e.same("softmax", scores), rate=float(a["dropout_p"]))
    return e.product(weights, v)
