"""Transformers with experts in every second block: GPT, BERT and ViT, top-1 and top-2.

A gate sends each token to one expert (Switch Transformer, Fedus et al. 2021) or to two (GShard,
Lepikhin et al. 2020, Algorithm 1, in which every second choice is sent, none at random). A group
is one sequence: an expert takes at most `capacity` of its tokens, first choices before second
ones, in the order of the tokens; a token beyond that passes by. No sequence decides for another,
so that any split of the batch trains alike.

Models return (result, balance): `balance` [batch] is the load-balancing loss of each sequence,
e sum_e f_e m_e with f_e the share of first choices that expert e got, and m_e its mean probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from ..experts import moe_combine, moe_dispatch
from .blank import blank
from .gpt import Block, causal_mask, next_token_loss

Output = tuple[flow.Tensor, flow.Tensor]
Entry = tuple[nn.Module, tuple[flow.Tensor, flow.Tensor], Callable[..., flow.Tensor]]

CAPACITY_FACTOR = 1.25
BALANCE = 0.01


class Choices(NamedTuple):
    """Where the choices of every token go; all [batch, length, top].

    expert:   its number, int64
    position: its place among the tokens that chose this expert, from 0, int64
    weight:   its share of the token's result; 0 if `position` is beyond the capacity
    """

    expert: flow.Tensor
    position: flow.Tensor
    weight: flow.Tensor


def capacity(top: int, length: int, experts: int, factor: float = CAPACITY_FACTOR) -> int:
    """Tokens of one sequence that an expert takes, of `top * length` choices."""
    return math.ceil(top * length / experts * factor)


def route(logits: flow.Tensor, top: int, room: int) -> tuple[Choices, flow.Tensor]:
    """The `top` choices of tokens with `logits` [batch, length, experts], and the balance [batch].

    room: the capacity of an expert
    """
    experts = logits.shape[-1]
    share = flow.softmax(logits, dim=-1)
    left, before = share, None
    masks, found = [], []
    for _ in range(top):
        expert = flow.argmax(left, dim=-1)
        mask = F.one_hot(expert, experts).to(share.dtype)
        place = flow.cumsum(mask, 1) - mask
        if before is not None:
            place = place + before
        count = mask.sum(dim=1, keepdim=True)
        before = count if before is None else before + count
        left = left - 2 * mask  # below all others, which are at least 0
        masks.append(mask)
        # looked up by number, the backward pass keeps no masks
        chosen = expert.unsqueeze(-1)
        found.append((expert, *(flow.gather(x, -1, chosen).squeeze(-1) for x in (place, share))))
    expert, place, weight = (flow.stack(parts, dim=-1) for parts in zip(*found, strict=True))
    if top > 1:
        weight = weight / weight.sum(dim=-1, keepdim=True)
    kept = (place < room).to(share.dtype)
    choices = Choices(expert, place.to(flow.int64), weight * kept)
    balance = experts * (masks[0].mean(dim=1) * share.mean(dim=1)).sum(dim=-1)
    return choices, balance


class Experts(nn.Module):
    """[batch, length, width] -> (the same, balance [batch]): a gate and MLPs of two layers.

    top: experts that each token is sent to
    """

    def __init__(
        self,
        width: int,
        experts: int,
        top: int,
        hidden: int | None = None,
        factor: float = CAPACITY_FACTOR,
    ) -> None:
        super().__init__()
        if not 1 <= top <= experts:
            raise ValueError(f"tokens cannot go to {top} of {experts} experts")
        hidden = hidden or 4 * width
        self.top, self.factor = top, factor
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(flow.zeros(experts, width, hidden))
        self.up_bias = nn.Parameter(flow.zeros(experts, 1, hidden))
        self.down = nn.Parameter(flow.zeros(experts, hidden, width))
        self.down_bias = nn.Parameter(flow.zeros(experts, 1, width))

    def forward(self, x: flow.Tensor) -> Output:
        room = capacity(self.top, x.shape[1], self.up.shape[0], self.factor)
        choices, balance = route(self.gate(x), self.top, room)
        return self.mixed(x, choices, room), balance

    def mixed(self, x: flow.Tensor, choices: Choices, room: int) -> flow.Tensor:
        """What the experts make of the tokens x, in places [experts, batch, room, width]."""
        where = choices.expert, choices.position
        sent = moe_dispatch(x, *where, experts=self.up.shape[0], capacity=room)
        return moe_combine(self.applied(sent), *choices)

    def applied(self, sent: flow.Tensor) -> flow.Tensor:
        """Each expert's MLP on its places [experts, batch, room, width]."""
        experts, batch, room, width = sent.shape
        rows = sent.reshape(experts, batch * room, width)
        inner = F.gelu(flow.matmul(rows, self.up) + self.up_bias)
        back = flow.matmul(inner, self.down) + self.down_bias
        return back.reshape(experts, batch, room, width)


class MixedBlock(Block):
    """A transformer layer whose MLP is one of experts."""

    def __init__(self, width: int, heads: int, dropout: float, experts: int, top: int) -> None:
        super().__init__(width, heads, dropout)
        self.mlp = Experts(width, experts, top)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None) -> Output:  # type: ignore[override]
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        mixed, balance = self.mlp(self.norm2(x))
        return x + self.dropout(mixed), balance


class MixedBlocks(nn.Module):
    """`layers` blocks, every second one with experts, and a norm: -> (x, balance [batch])."""

    def __init__(
        self, layers: int, width: int, heads: int, experts: int, top: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                MixedBlock(width, heads, dropout, experts, top)
                if number % 2
                else Block(width, heads, dropout)
                for number in range(layers)
            ]
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: flow.Tensor, mask: flow.Tensor | None = None) -> Output:
        total = None
        for layer in self.layers:
            if isinstance(layer, MixedBlock):
                x, balance = layer(x, mask)
                total = balance if total is None else total + balance
            else:
                x = layer(x, mask)
        return self.norm(x), total


def _initialise(model: nn.Module) -> None:
    """Weights with deviation 0.02, biases zero, norms as they are."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, 0.0, 0.02)


class MixedLanguageModel(nn.Module):
    """Token numbers [batch, length] -> (logits [batch, length, vocabulary], balance [batch]).

    causal: GPT's mask; without it BERT's attention in both directions
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        length: int,
        vocabulary: int,
        experts: int,
        top: int,
        dropout: float = 0.0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(flow.zeros(length, width))
        self.blocks = MixedBlocks(layers, width, heads, experts, top, dropout)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        self.causal = causal
        if causal:
            self.register_buffer("mask", causal_mask(length))
        _initialise(self)

    def forward(self, tokens: flow.Tensor) -> Output:
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position[:length]
        x, balance = self.blocks(x, self.mask[:length, :length] if self.causal else None)
        return self.logits(x), balance


class MixedVit(nn.Module):
    """Images [batch, 3, size, size] -> (logits [batch, classes], balance [batch]).

    The tokens are patches of `patch` by `patch`; the classifier sees their mean.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        size: int,
        patch: int,
        classes: int,
        experts: int,
        top: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(flow.zeros((size // patch) ** 2, width))
        self.blocks = MixedBlocks(layers, width, heads, experts, top, dropout)
        self.logits = nn.Linear(width, classes)
        _initialise(self)

    def forward(self, images: flow.Tensor) -> Output:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        x, balance = self.blocks(x)
        return self.logits(x.mean(dim=1)), balance


def language_loss(output: Output, target: flow.Tensor) -> flow.Tensor:
    """Mean cross-entropy of every token, and the experts' balance."""
    logits, balance = output
    return next_token_loss(logits, target) + BALANCE * balance.mean()


def image_loss(output: Output, target: flow.Tensor) -> flow.Tensor:
    """Mean cross-entropy of every image, and the experts' balance."""
    logits, balance = output
    return F.cross_entropy(logits, target) + BALANCE * balance.mean()


def _bert(batch: int, experts: int, top: int, dropout: float) -> Entry:
    """HiDup's (section 6): 8 layers of BERT-Base, 128 tokens of WikiText-2's 33,278 words."""
    model = MixedLanguageModel(8, 768, 12, 128, 33278, experts, top, dropout, causal=False)
    tokens = blank(batch, 128, dtype=flow.int64)
    return model, (tokens, tokens), language_loss


def bert_moe_8(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """8 layers of BERT-Base, every second with 8 top-2 experts (HiDup), batch 256: 2x4."""
    return _bert(batch or 256, 8, 2, dropout)


def bert_moe_64(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """8 layers of BERT-Base, every second with 64 top-2 experts (HiDup), batch 2,048: 8x8."""
    return _bert(batch or 2048, 64, 2, dropout)


def bert_switch_8(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """8 layers of BERT-Base, every second with 8 top-1 experts (HiDup), batch 256: 2x4."""
    return _bert(batch or 256, 8, 1, dropout)


def vit_switch_8(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """8 layers of ViT-Base on 224x224 images, every second with 8 top-1 experts, batch 256."""
    batch = batch or 256
    model = MixedVit(8, 768, 12, 224, 16, 1000, experts=8, top=1, dropout=dropout)
    return model, (blank(batch, 3, 224, 224), blank(batch, dtype=flow.int64)), image_loss


def gpt_moe_small(
    batch: int | None = None, dropout: float = 0.0, experts: int = 4, top: int = 2
) -> Entry:
    """2 layers of width 32 on 16 sequences of 16 bytes, the second with 4 top-2 experts."""
    model = MixedLanguageModel(2, 32, 4, 16, 256, experts, top, dropout)
    tokens = blank(batch or 16, 16, dtype=flow.int64)
    return model, (tokens, tokens), language_loss
