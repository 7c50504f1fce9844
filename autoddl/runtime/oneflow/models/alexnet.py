"""AlexNet, one tower (Krizhevsky, "One weird trick for parallelizing CNNs")."""

from __future__ import annotations

from collections.abc import Callable

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from .blank import blank

Entry = tuple[nn.Module, tuple[flow.Tensor, flow.Tensor], Callable[..., flow.Tensor]]


class AlexNet(nn.Module):
    """Images [batch, 3, size, size], size 63 or more -> logits [batch, classes].

    divisor: divides the number of channels of every convolution and dense layer
    """

    def __init__(
        self, size: int = 224, classes: int = 1000, divisor: int = 1, dropout: float = 0.5
    ) -> None:
        super().__init__()
        first, second, third, last = (n // divisor for n in (64, 192, 384, 256))
        dense = 4096 // divisor
        self.features = nn.Sequential(
            nn.Conv2d(3, first, kernel_size=11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(first, second, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(second, third, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(third, last, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(last, last, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(last * _final_size(size) ** 2, dense),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(dense, dense),
            nn.ReLU(),
            nn.Linear(dense, classes),
        )

    def forward(self, images: flow.Tensor) -> flow.Tensor:
        return self.classifier(self.features(images).flatten(1))


def _final_size(size: int) -> int:
    """Height of the last feature map: after the strided convolution, three maxima of 3 by 2."""
    size = (size + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        size = (size - 3) // 2 + 1
    return size


def alexnet(batch: int | None = None, dropout: float = 0.5) -> Entry:
    """224x224 images, 1,000 classes, batch 128."""
    batch = batch or 128
    example = (blank(batch, 3, 224, 224), blank(batch, dtype=flow.int64))
    return AlexNet(dropout=dropout), example, F.cross_entropy


def alexnet_small(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """64x64 images, 10 classes, an eighth of the channels, batch 32."""
    batch = batch or 32
    example = (blank(batch, 3, 64, 64), blank(batch, dtype=flow.int64))
    return AlexNet(64, 10, divisor=8, dropout=dropout), example, F.cross_entropy
