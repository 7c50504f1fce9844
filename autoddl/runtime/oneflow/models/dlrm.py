"""DLRM, a recommendation model (Naumov et al., 2019).

Dense features go through an MLP, sparse features through embedding tables; the dot products of all
pairs of these vectors, and the dense vector itself, go through a second MLP to one logit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from .blank import blank

Entry = tuple[nn.Module, tuple[flow.Tensor, ...], Callable[..., flow.Tensor]]


def mlp(widths: Sequence[int], last_is_linear: bool) -> nn.Sequential:
    """Linear layers from widths[0] to widths[-1], a ReLU after each (but the last)."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if last_is_linear else layers))


class Dlrm(nn.Module):
    """(dense [batch, features], sparse [batch, tables] of row numbers) -> logits [batch].

    rows:   of each embedding table
    bottom: widths of the dense features' MLP; the last is the embeddings' width
    top:    widths of the second MLP between the interactions and the logit
    """

    def __init__(
        self, features: int, rows: Sequence[int], bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        width = bottom[-1]
        vectors = len(rows) + 1
        self.bottom = mlp((features, *bottom), last_is_linear=False)
        self.tables = nn.ModuleList([nn.Embedding(count, width) for count in rows])
        self.top = mlp((width + vectors * (vectors - 1) // 2, *top, 1), last_is_linear=True)
        pairs = [i * vectors + j for i in range(vectors) for j in range(i)]
        self.register_buffer("pairs", flow.tensor(pairs, dtype=flow.int64))
        for table in self.tables:
            nn.init.normal_(table.weight, 0.0, width**-0.5)

    def forward(self, dense: flow.Tensor, sparse: flow.Tensor) -> flow.Tensor:
        x = self.bottom(dense)
        looked_up = [table(sparse[:, k]) for k, table in enumerate(self.tables)]
        vectors = flow.stack([x, *looked_up], dim=1)
        products = flow.matmul(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = flow.index_select(products, 1, self.pairs)
        return self.top(flow.cat([x, interactions], dim=1)).flatten()


def _entry(model: Dlrm, batch: int, features: int, tables: int) -> Entry:
    dense, sparse = blank(batch, features), blank(batch, tables, dtype=flow.int64)
    return model, (dense, sparse, blank(batch)), F.binary_cross_entropy_with_logits


def dlrm(batch: int | None = None) -> Entry:
    """13 dense features, 26 tables of a million rows of width 128, batch 2,048."""
    model = Dlrm(13, [1_000_000] * 26, (512, 256, 128), (1024, 1024, 512, 256))
    return _entry(model, batch or 2048, 13, 26)


def dlrm_small(batch: int | None = None) -> Entry:
    """8 dense features, 3 tables of 64 rows of width 16, batch 32."""
    model = Dlrm(8, [64] * 3, (32, 16), (32, 16))
    return _entry(model, batch or 32, 8, 3)
