"""Models that nobody wrote: operators at random, each reading one or two of the last results."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.framework import NAME, F, flow, nn

Shape = tuple[int, ...]  # without the batch
Made = tuple[Callable[..., Any], Shape]

SHAPES: tuple[Shape, ...] = ((16,), (8, 16), (6, 12), (4, 8, 8))
POINTWISE = (
    F.relu, F.gelu, F.silu, flow.tanh, flow.sigmoid, F.softplus, flow.sin, flow.abs,
    lambda x: flow.clamp(x, -1.0, 1.0), lambda x: flow.exp(-x * x), lambda x: x.square(),
    lambda x: 1 / (1 + x * x), lambda x: flow.log(x * x + 1), lambda x: x * 0.5 + 1,
    lambda x: flow.where(x > 0, x, 0.1 * x), lambda x: x - flow.floor(x),
)  # fmt: skip
PAIRS = (
    lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x / (y * y + 1), flow.maximum,
    lambda x, y: flow.where(x > y, x, y * 0.5), lambda x, y: x.masked_fill(y > 0, 0.3),
)  # fmt: skip
SUMS = (
    lambda x, d: x.sum(dim=d), lambda x, d: x.mean(dim=d), lambda x, d: flow.max(x, dim=d)[0],
    lambda x, d: flow.var(x, dim=d), lambda x, d: x.exp().sum(dim=d).log(),
)  # fmt: skip


class RandomModel(nn.Module):
    """[rows, *shape] -> [rows, 4]; `names` tells what it does."""

    def __init__(self, seed: int):
        super().__init__()
        self.draw = random.Random(seed)
        self.shape = self.draw.choice(SHAPES)
        self.layers = nn.ModuleList()
        self.names: list[str] = []
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        shapes = [self.shape]
        while len(self.steps) < 8:
            at = self.draw.randrange(max(0, len(shapes) - 3), len(shapes))
            others = [n for n, shape in enumerate(shapes) if shape == shapes[at]]
            other = self.draw.choice(others)
            kind = self.draw.choice(KINDS)
            made = getattr(self, f"_{kind}")(shapes[at])
            if made is None or np.prod(made[1]) > 600:
                continue
            self.names.append(kind)
            self.steps.append((made[0], (at, other) if kind in BINARY else (at,)))
            shapes.append(made[1])
        self.head = nn.Linear(int(np.prod(shapes[-1])), 4)

    def forward(self, x):
        found = [x]
        for step, sources in self.steps:
            found.append(step(*(found[source] for source in sources)))
        return self.head(found[-1].flatten(1))

    def _layer(self, layer: Any, shape: Shape) -> Made:
        self.layers.append(layer)
        return layer, shape

    def _pointwise(self, shape: Shape) -> Made:
        return self.draw.choice(POINTWISE), shape

    def _pair(self, shape: Shape) -> Made:
        return self.draw.choice(PAIRS), shape

    def _linear(self, shape: Shape) -> Made:
        width = self.draw.choice((4, 6, 8, 16))
        return self._layer(nn.Linear(shape[-1], width), (*shape[:-1], width))

    def _layer_norm(self, shape: Shape) -> Made | None:
        return self._layer(nn.LayerNorm(shape[-1]), shape) if shape[-1] > 2 else None

    def _softmax(self, shape: Shape) -> Made:
        dim = self.draw.randrange(len(shape)) + 1
        return lambda x: F.softmax(x, dim=dim), shape

    def _reduced(self, shape: Shape) -> Made | None:
        dim, reduce = self.draw.randrange(len(shape)), self.draw.choice(SUMS)
        if len(shape) == 1 or shape[dim] < 2:
            return None
        return lambda x: reduce(x, dim + 1), shape[:dim] + shape[dim + 1 :]

    def _permuted(self, shape: Shape) -> Made:
        order = self.draw.sample(range(len(shape)), len(shape))
        return lambda x: x.permute(0, *(d + 1 for d in order)), tuple(shape[d] for d in order)

    def _merged(self, shape: Shape) -> Made | None:
        if len(shape) == 1:
            return None
        merged = (shape[0] * shape[1], *shape[2:])
        return lambda x: x.reshape(x.shape[0], *merged), merged

    def _parted(self, shape: Shape) -> Made | None:
        width = shape[-1]
        if len(shape) > 2 or width % 4:
            return None
        parted = (*shape[:-1], 4, width // 4)
        return lambda x: x.reshape(x.shape[0], *parted), parted

    def _half(self, shape: Shape) -> Made | None:
        dim, which = self.draw.randrange(len(shape)), self.draw.randrange(2)
        if shape[dim] % 2:
            return None
        half = (*shape[:dim], shape[dim] // 2, *shape[dim + 1 :])
        return lambda x: flow.chunk(x, 2, dim=dim + 1)[which], half

    def _joined(self, shape: Shape) -> Made:
        dim = self.draw.randrange(len(shape))
        both = (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])
        return lambda x, y: flow.cat([x, y], dim=dim + 1), both

    def _alike(self, shape: Shape) -> Made | None:
        if len(shape) == 1 or NAME == "torch":  # which has no rule for it yet
            return None
        return lambda x, y: F.cosine_similarity(x + 0.1, y + 0.2, dim=-1), shape[:-1]

    def _scores(self, shape: Shape) -> Made | None:
        if len(shape) != 2:
            return None
        return lambda x, y: 0.3 * flow.matmul(x, y.transpose(1, 2)), (shape[0], shape[0])

    def _padded(self, shape: Shape) -> Made:
        return lambda x: F.pad(x, (1, 2)), (*shape[:-1], shape[-1] + 3)

    def _in_place(self, shape: Shape) -> Made:
        return lambda x: (x * 1.5).add_(1.0), shape

    def _largest(self, shape: Shape) -> Made:
        return lambda x: x * F.one_hot(x.argmax(dim=-1), x.shape[-1]).to(flow.float32), shape

    def _detached(self, shape: Shape) -> Made:
        return lambda x, y: x + 0.5 * y.detach(), shape

    def _over_the_batch(self, shape: Shape) -> Made:
        return lambda x: x - x.mean(dim=0, keepdim=True), shape

    def _conv(self, shape: Shape) -> Made | None:
        if len(shape) != 3:
            return None
        return self._layer(nn.Conv2d(shape[0], 8, 3, padding=1), (8, *shape[1:]))

    def _batch_norm(self, shape: Shape) -> Made | None:
        return self._layer(nn.BatchNorm2d(shape[0]), shape) if len(shape) == 3 else None

    def _pooled(self, shape: Shape) -> Made | None:
        if len(shape) != 3 or shape[1] % 2 or shape[2] % 2:
            return None
        return lambda x: F.max_pool2d(x, 2), (shape[0], shape[1] // 2, shape[2] // 2)


BINARY = ("pair", "joined", "alike", "scores", "detached")
KINDS = (
    "pointwise", "pointwise", "pair", "linear", "linear", "layer_norm", "softmax", "reduced",
    "permuted", "merged", "parted", "half", "joined", "alike", "scores", "padded", "in_place",
    "largest", "detached", "over_the_batch", "conv", "conv", "batch_norm", "pooled",
)  # fmt: skip
