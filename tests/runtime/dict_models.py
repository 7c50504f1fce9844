"""Small models whose batches and results are dicts or nested."""

from typing import Any

import numpy as np

from tests.framework import F, flow, nn
from tests.runtime.small_models import floats, mean_square, whole


class Masked(nn.Module):
    """The mean of the words that a mask leaves, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, ids: Any, mask: Any) -> dict[str, Any]:
        hidden = (self.words(ids) * mask.unsqueeze(-1)).sum(1)
        hidden = F.gelu(self.first(hidden))
        return {"logits": self.second(hidden), "hidden": hidden}


class OfPair(Masked):
    """The same, of a tuple."""

    def forward(self, pair: tuple[Any, Any]) -> dict[str, Any]:  # type: ignore[override]
        return super().forward(*pair)


def loss(output: dict[str, Any], batch: dict[str, Any]) -> Any:
    return mean_square(output["logits"], batch["labels"])


def called(model: Any, loss: Any, batch: Any) -> tuple[Any, Any]:
    """The model's result and its loss on one device, of a batch of any kind."""
    if isinstance(batch, dict):
        output = model(**{key: batch[key] for key in ("ids", "mask")})
        return output, loss(output, batch)
    *inputs, target = batch
    output = model(*inputs)
    return output, loss(output, target)


def joined(batches: list[Any]) -> Any:
    """One batch of all rows."""
    if isinstance(batches[0], dict):
        return {k: flow.cat([one[k] for one in batches], dim=0) for k in batches[0]}
    return [flow.cat(list(parts), dim=0) for parts in zip(*batches, strict=True)]


def by_name(rng: np.random.Generator, n: int) -> dict[str, Any]:
    mask = whole(rng, 2, n, 5).to(flow.float32)
    return {"labels": floats(rng, n, 4), "mask": mask, "ids": whole(rng, 16, n, 5)}


def nested(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    batch = by_name(rng, n)
    return (batch["ids"], batch["mask"]), {"labels": batch["labels"]}


DICTS = {"by name": (Masked, loss, by_name), "nested": (OfPair, loss, nested)}
