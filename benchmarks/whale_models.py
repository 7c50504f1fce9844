"""The models of Whale's evaluation (Jia et al., ATC 2022, section 5), at any batch.

The paper gives their names, their layers and, of the giant ones, their parameters. What it leaves
open is taken from where it points to, or is said here to be our choice:

    bert_large  24 layers of width 1024 (Devlin et al. 2018), 128 tokens: ours
    t5_large    24 + 24 layers of width 1024 (Xue et al. 2020), 128 tokens: ours
    gnmt        8 + 8 LSTM layers of width 1024 (Wu et al. 2016), 32,000 words; 16 words: ours
    resnet50    images of 224 x 224: ours; with 100,000 or 1,000,000 classes
    m6_10b      24 + 24 layers; width 4096 gives 11.3 thousand million parameters, 128 tokens: ours
    m6_moe      24 layers of width 1024, each with experts of two layers (Yang et al. 2021, M6-T):
                512 of 4,096 hidden features or 960 of 21,248, by which they have 1.0e11 and 1.0e12
                parameters; top-2 of a sequence of 128 tokens: ours
"""

from __future__ import annotations

import math
from collections.abc import Callable

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
from flowvision.models import resnet50

from autoddl.runtime.oneflow.models.blank import blank
from autoddl.runtime.oneflow.models.gpt import Block, Gpt, next_token_loss
from autoddl.runtime.oneflow.models.moe import Experts, language_loss

Entry = tuple[nn.Module, tuple[object, ...], Callable[..., flow.Tensor]]
TOKENS = 128
BERT_WORDS, T5_WORDS, M6_WORDS, GNMT_WORDS = 30_522, 32_128, 21_128, 32_000


class Attended(nn.Module):
    """Attention of [batch, length, width] to what an encoder made."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.both = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: flow.Tensor, memory: flow.Tensor) -> flow.Tensor:
        batch, length, width = x.shape
        size, there = width // self.heads, memory.shape[1]
        q = self.query(x).reshape(batch, length, self.heads, size).permute(0, 2, 1, 3)
        kv = self.both(memory).reshape(batch, there, self.heads, 2 * size).permute(0, 2, 1, 3)
        k, v = flow.chunk(kv, 2, dim=-1)
        scores = flow.matmul(q * (1 / math.sqrt(size)), k.transpose(-1, -2))
        mixed = flow.matmul(flow.softmax(scores, dim=-1), v)
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class DecoderBlock(Block):
    """A transformer layer that also attends to the encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, 0.0)
        self.norm3, self.attended = nn.LayerNorm(width), Attended(width, heads)

    def forward(self, x: flow.Tensor, memory: flow.Tensor) -> flow.Tensor:  # type: ignore[override]
        x = x + self.attention(self.norm1(x), None)
        x = x + self.attended(self.norm3(x), memory)
        return x + self.mlp(self.norm2(x))


class EncoderDecoder(nn.Module):
    """(tokens, tokens) [batch, length] -> logits [batch, length, vocabulary]."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList([Block(width, heads, 0.0) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        memory = self.embedding(source)
        for block in self.encoder:
            memory = block(memory, None)
        x = self.embedding(target)
        for block in self.decoder:
            x = block(x, memory)
        return self.logits(self.norm(x))


class SparseBlock(Block):
    """A transformer layer whose MLP is one of experts: -> (x, balance)."""

    def __init__(self, width: int, heads: int, experts: int, hidden: int) -> None:
        super().__init__(width, heads, 0.0)
        self.mlp = Experts(width, experts, 2, hidden)

    def forward(  # type: ignore[override]
        self, x: flow.Tensor, mask: flow.Tensor | None
    ) -> tuple[flow.Tensor, flow.Tensor]:
        x = x + self.attention(self.norm1(x), mask)
        mixed, balance = self.mlp(self.norm2(x))
        return x + mixed, balance


class Sparse(nn.Module):
    """Token numbers [batch, length] -> (logits, balance [batch]); experts in every layer."""

    def __init__(self, layers: int, width: int, experts: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(M6_WORDS, width)
        self.blocks = nn.ModuleList(
            [SparseBlock(width, width // 64, experts, hidden) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, M6_WORDS, bias=False)

    def forward(self, tokens: flow.Tensor) -> tuple[flow.Tensor, flow.Tensor]:
        x, total = self.embedding(tokens), None
        for block in self.blocks:
            x, balance = block(x, None)
            total = balance if total is None else total + balance
        return self.logits(self.norm(x)), total


class Gnmt(nn.Module):
    """(words, words) [batch, length] -> logits; the first encoder layer reads both ways."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(GNMT_WORDS, width) for _ in range(2))
        self.both = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        widths = [2 * width] + [width] * (layers - 2)
        self.encoder = nn.ModuleList([nn.LSTM(own, width, batch_first=True) for own in widths])
        self.decoder = nn.ModuleList(
            [nn.LSTM(width, width, batch_first=True)]
            + [nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1)]
        )
        self.logits = nn.Linear(width, GNMT_WORDS)

    def forward(self, words: flow.Tensor, target: flow.Tensor) -> flow.Tensor:
        x = self.both(self.source(words))[0]
        for number, layer in enumerate(self.encoder):
            y = layer(x)[0]
            x = y if number == 0 else x + y
        first, *others = self.decoder
        y = first(self.target(target))[0]
        scores = flow.matmul(y, x.transpose(-1, -2))
        seen = flow.matmul(flow.softmax(scores, dim=-1), x)
        for number, layer in enumerate(others):
            z = layer(flow.cat([y, seen], dim=-1))[0]
            y = z if number == 0 else y + z
        return self.logits(y)


def _tokens(batch: int, length: int = TOKENS) -> flow.Tensor:
    return blank(batch, length, dtype=flow.int64)


def bert_large(batch: int) -> Entry:
    tokens = _tokens(batch)
    return Gpt(24, 1024, 16, TOKENS, BERT_WORDS), (tokens, tokens), next_token_loss


def t5_large(batch: int) -> Entry:
    tokens = _tokens(batch)
    model = EncoderDecoder(24, 1024, 16, T5_WORDS)
    return model, (tokens, tokens, tokens), next_token_loss


def m6_10b(batch: int) -> Entry:
    tokens = _tokens(batch)
    model = EncoderDecoder(24, 4096, 32, M6_WORDS)
    return model, (tokens, tokens, tokens), next_token_loss


def m6_moe_100b(batch: int) -> Entry:
    tokens = _tokens(batch)
    return Sparse(24, 1024, 512, 4096), (tokens, tokens), language_loss


def m6_moe_1t(batch: int) -> Entry:
    tokens = _tokens(batch)
    return Sparse(24, 1024, 960, 21248), (tokens, tokens), language_loss


def gnmt(batch: int) -> Entry:
    words = _tokens(batch, 16)
    return Gnmt(8, 1024), (words, words, words), next_token_loss


def resnet(batch: int, classes: int = 1000) -> Entry:
    images, labels = blank(batch, 3, 224, 224), blank(batch, dtype=flow.int64)
    return resnet50(num_classes=classes), (images, labels), F.cross_entropy


def resnet_100k(batch: int) -> Entry:
    return resnet(batch, 100_000)


def resnet_1m(batch: int) -> Entry:
    return resnet(batch, 1_000_000)
