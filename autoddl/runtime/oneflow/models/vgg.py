"""VGG13, configuration B of Simonyan and Zisserman (AutoDDL sections 4.5 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from .blank import blank

Entry = tuple[nn.Module, tuple[flow.Tensor, flow.Tensor], Callable[..., flow.Tensor]]


class Vgg13(nn.Module):
    """Images [batch, channels, size, size] -> logits [batch, classes].

    Five groups of two 3x3 convolutions, `widths` channels each, and a 2x2 maximum after each group,
    then three dense layers.
    """

    def __init__(
        self,
        size: int = 224,
        classes: int = 1000,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        dense: int = 4096,
        dropout: float = 0.5,
        channels: int = 3,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (size // 2 ** len(widths)) ** 2, dense),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(dense, dense),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(dense, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
                nn.init.zeros_(module.bias)
        # Small first logits: training starts at chance, not at a random confident answer.
        nn.init.normal_(self.classifier[-1].weight, 0.0, 0.01)

    def forward(self, images: flow.Tensor) -> flow.Tensor:
        return self.classifier(self.features(images).flatten(1))


def vgg13(batch: int | None = None, dropout: float = 0.5) -> Entry:
    """224x224 images, 1,000 classes, 8 images on each of 16 nodes (AutoDDL section 5.2)."""
    batch = batch or 128
    example = (blank(batch, 3, 224, 224), blank(batch, dtype=flow.int64))
    return Vgg13(dropout=dropout), example, F.cross_entropy


def vgg13_small(batch: int | None = None, dropout: float = 0.0) -> Entry:
    """One-channel 32x32 images, 10 classes, an eighth of the channels, batch 32."""
    batch = batch or 32
    model = Vgg13(32, 10, widths=(8, 16, 32, 64, 64), dense=128, dropout=dropout, channels=1)
    return model, (blank(batch, 1, 32, 32), blank(batch, dtype=flow.int64)), F.cross_entropy
