"""GPT language models: the transformers of AutoDDL sections 5.2 and 5.3, GPT-3 and a small one.

The fused projection's columns are ordered (head, 3, dim), so that splitting them splits whole
heads; the output projection is named `proj`. Logits share the embedding's weight, as in GPT: so
counted, the paper's 8, 20 and 44 layers of width 8192 have 6.8, 16.5 and 35.8 billion parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from .blank import blank

Entry = tuple[nn.Module, tuple[flow.Tensor, flow.Tensor], Callable[..., flow.Tensor]]

VOCABULARY = 51200
_MASKED = -1e4


def causal_mask(length: int) -> flow.Tensor:
    """[length, length] to be added to scores: no token sees a later one."""
    return flow.triu(flow.full((length, length), _MASKED), 1)


class Attention(nn.Module):
    """Self-attention of [batch, length, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None) -> flow.Tensor:
        """`mask` [length, length], if given, is added to the scores."""
        batch, length, width = x.shape
        size = width // self.heads
        heads = self.qkv(x).reshape(batch, length, self.heads, 3 * size).permute(0, 2, 1, 3)
        q, k, v = flow.chunk(heads, 3, dim=-1)
        scores = flow.matmul(q * (1 / math.sqrt(size)), k.transpose(-1, -2))
        if mask is not None:
            scores = scores + mask
        mixed = flow.matmul(self.dropout(flow.softmax(scores, dim=-1)), v)
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two linear layers around a GELU, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """A transformer layer, normalised before attention and before the MLP."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None) -> flow.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """Token numbers [batch, length] -> logits [batch, length, vocabulary].

    tied: the logits' weight is the embedding's
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        length: int,
        vocabulary: int = VOCABULARY,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(flow.zeros(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.logits.weight = self.embedding.weight
        self.register_buffer("mask", causal_mask(length))
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        """GPT-2's: deviation 0.02, smaller where a layer adds to the residual stream."""
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.weight", "fc2.weight")):
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * layers))
            elif name == "position" or (name.endswith("weight") and parameter.ndim == 2):
                nn.init.normal_(parameter, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: flow.Tensor) -> flow.Tensor:
        length = tokens.shape[1]
        x = self.dropout(self.embedding(tokens) + self.position[:length])
        mask = self.mask[:length, :length]
        for block in self.blocks:
            x = block(x, mask)
        return self.logits(self.norm(x))


def next_token_loss(logits: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
    """Mean cross-entropy of logits [batch, length, vocabulary] and tokens [batch, length]."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def _entry(model: Gpt, batch: int, length: int) -> Entry:
    tokens = blank(batch, length, dtype=flow.int64)
    return model, (tokens, tokens), next_token_loss


def gpt_6_8b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """8 layers of width 8192 on 1,024 sequences of 1,024 tokens: 64 nodes (section 5.2)."""
    return _entry(Gpt(8, 8192, 64, 1024, dropout=dropout), batch or 1024, 1024)


def gpt_16b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """20 layers of width 8192 on 1,024 sequences of 1,024 tokens: 128 nodes (section 5.2)."""
    return _entry(Gpt(20, 8192, 64, 1024, dropout=dropout), batch or 1024, 1024)


def gpt_36b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """44 layers of width 8192 on 1,024 sequences of 1,024 tokens: 256 nodes (section 5.2)."""
    return _entry(Gpt(44, 8192, 64, 1024, dropout=dropout), batch or 1024, 1024)


def gpt_0_35b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """24 layers of width 1024 on 2,048 sequences of 1,024 tokens (section 5.3)."""
    return _entry(Gpt(24, 1024, 16, 1024, dropout=dropout), batch or 2048, 1024)


def gpt_5_8b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """28 layers of width 4096 on 2,048 sequences of 1,024 tokens (section 5.3)."""
    return _entry(Gpt(28, 4096, 32, 1024, dropout=dropout), batch or 2048, 1024)


def gpt3_175b(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """GPT-3: 96 layers of width 12288 on 1,536 sequences of 2,048 tokens."""
    return _entry(Gpt(96, 12288, 96, 2048, dropout=dropout), batch or 1536, 2048)


def gpt_small(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """2 layers of width 64 on 16 sequences of 32 bytes."""
    return _entry(Gpt(2, 64, 4, 32, vocabulary=256, dropout=dropout), batch or 16, 32)
