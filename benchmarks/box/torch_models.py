"""The models of the race on PyTorch, with the Megatron plan of each for `parallelize_module`.

Queries, keys and values come from products of their own, and the number of heads follows from a
tensor's size, as in models that are written for `parallelize_module`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Entry = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]
WORDS, LENGTH, WIDTH, HEAD = 2048, 128, 256, 32
CLASSES = 100


class Mlp(nn.Module):
    """Pairs of dense layers: the first one's outputs, the second one's inputs can be split."""

    def __init__(self, pairs: int, width: int) -> None:
        super().__init__()
        layers = (nn.Linear(width, width) for _ in range(2 * pairs))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Attention(nn.Module):
    """groups: heads of keys and values; sizes of `turns` (cos, sin) for rotary positions."""

    def __init__(self, width: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.k, self.v = (nn.Linear(width, groups * HEAD, bias) for _ in "kv")

    def forward(
        self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            product(x).view(rows, length, -1, HEAD).transpose(1, 2)
            for product in (self.q, self.k, self.v)
        )
        if turns is not None:
            q, k = turned(q, *turns), turned(k, *turns)
        seen = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.out(seen.transpose(1, 2).reshape(rows, length, -1))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class GptBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, width // HEAD, bias=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(GptBlock(WIDTH) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, width // HEAD // 2, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in "gu")
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), turns)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(LlamaBlock(WIDTH) for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.short = nn.Sequential()
        if stride > 1:
            narrow = nn.Conv2d(inputs, channels, 1, stride, bias=False)
            self.short = nn.Sequential(narrow, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """Two blocks for each width, the image half as large each time, as in ResNet-18."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, widths[0], 3, 1, 1), nn.BatchNorm2d(widths[0])
        blocks, inputs = [], widths[0]
        for number, width in enumerate(widths):
            blocks += [Residual(inputs, width, 1 + (number > 0)), Residual(width, width, 1)]
            inputs = width
        self.layers, self.head = nn.ModuleList(blocks), nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


def next_word(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def mlp(batch: int | None = None) -> Entry:
    """4 dense layers of width 1024 on 2048 rows."""
    rows = batch or 2048
    return Mlp(2, 1024), (torch.randn(rows, 1024), torch.randn(rows, 1024)), F.mse_loss


def gpt(batch: int | None = None) -> Entry:
    """4 blocks of width 256 on 16 sequences of 128 words."""
    return Gpt(4), _words(batch), next_word


def llama(batch: int | None = None) -> Entry:
    """4 blocks of width 256 on 16 sequences of 128 words."""
    return Llama(4), _words(batch), next_word


def resnet(batch: int | None = None) -> Entry:
    """ResNet-18 of half its widths on 32 images of 32 x 32."""
    rows = batch or 32
    example = torch.randn(rows, 3, 32, 32), torch.randint(0, CLASSES, (rows,))
    return ResNet((32, 64, 128, 256)), example, F.cross_entropy


def _words(batch: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    shape = batch or 16, LENGTH
    return torch.randint(0, WORDS, shape), torch.randint(0, WORDS, shape)


MODELS: dict[str, Callable[..., Entry]] = {
    "mlp": mlp, "gpt": gpt, "llama": llama, "resnet": resnet,
}  # fmt: skip
_ATTENTION = {
    **{f"layers.*.attention.{name}": "columns" for name in "qkv"},
    "layers.*.attention.out": "rows", "layers.*.up": "columns", "layers.*.down": "rows",
    "words": "vocabulary", "head": "logits",
}  # fmt: skip
# model -> module -> how Megatron splits it; a ResNet has no such plan
MEGATRON: dict[str, dict[str, str]] = {
    "mlp": {f"layers.{n}": ("columns", "rows")[n % 2] for n in range(4)},
    "gpt": _ATTENTION,
    "llama": {**_ATTENTION, "layers.*.gate": "columns"},
}


def blocks_of(model: Any) -> list[nn.Module]:
    """What `fully_shard` gathers as one, beside the rest."""
    return list(model.layers)
