"""Models whose losses are no mean of independent rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.framework import F, flow, nn
from tests.runtime.small_models import Transformer, floats, whole

CLASSES = 6


class Dense(nn.Module):
    """A perceptron whose loss may take its first weight as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.second(F.gelu(self.first(x)))


class Decayed(Dense):
    """Gives its weights' squares beside the result."""

    def forward(self, x: Any) -> Any:
        return super().forward(x), (self.first.weight**2).sum()


class Attending(Dense):
    """Each row is a mixture of the rows of its batch, also in evaluation."""

    def forward(self, x: Any) -> Any:
        x = super().forward(x)
        return flow.matmul(flow.softmax(flow.matmul(x, x.transpose(0, 1)), dim=-1), x)


class TokensFirst(Dense):
    """The sequence leads, and its tokens and rows are one dim on the way."""

    def forward(self, x: Any) -> Any:
        rows, tokens, _ = x.shape
        flat = x.transpose(0, 1).reshape(tokens * rows, -1)
        return super().forward(flat).reshape(tokens, rows, -1).transpose(0, 1)


def ignoring(out: Any, target: Any) -> Any:
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1), ignore_index=1)


def masked(out: Any, target: Any) -> Any:
    w = (target > 0.3).to(flow.float32)
    return ((out - target) ** 2 * w).sum() / w.sum()


def counted(out: Any, target: Any) -> Any:
    mask = target > 0.3
    return ((out - target) ** 2 * mask).sum() / mask.sum().clamp(min=1)


def summed(out: Any, target: Any) -> Any:
    return nn.CrossEntropyLoss(reduction="sum")(out, target)


def decayed(out: Any, target: Any) -> Any:
    out, squares = out
    return F.cross_entropy(out, target, reduction="sum") + 0.1 * squares + 3 * (out**2).mean()


def contrastive(out: Any, target: Any) -> Any:
    out = out / flow.sqrt((out**2).sum(1, keepdim=True))
    return F.cross_entropy(flow.matmul(out, out.transpose(0, 1)) / 0.5, target)


def spread(out: Any, target: Any) -> Any:
    """The root of a mean over the batch."""
    return flow.sqrt(((out - target) ** 2).mean())


def labels(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 8), whole(rng, CLASSES, n)


def values(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 8), floats(rng, n, CLASSES)


def words(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return whole(rng, 32, n, 8), whole(rng, 4, n, 8)


def sequences(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 3, 8), floats(rng, n, 3, CLASSES)


WEIGHTED = nn.CrossEntropyLoss(weight=flow.arange(1, CLASSES + 1).to(flow.float32))
Made = tuple[Callable[[], nn.Module], Callable[..., Any], Callable[..., tuple[Any, Any]]]
EXACT: dict[str, Made] = {
    "ignoring": (Dense, ignoring, labels),
    "ignoring words": (Transformer, ignoring, words),
    "weighted": (Dense, WEIGHTED, labels),
    "masked": (Dense, masked, values),
    "counted": (Dense, counted, values),
    "summed": (Dense, summed, labels),
    "tokens first": (TokensFirst, nn.MSELoss(), sequences),
    "decayed": (Decayed, decayed, labels),
}
WHOLE: dict[str, Made] = {
    "contrastive": (Dense, contrastive, labels),
    "spread": (Dense, spread, values),
    "attending": (Attending, summed, labels),
}
LOSSES = {**EXACT, **WHOLE}
