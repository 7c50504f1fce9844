"""The models that the box trains: large enough that tensors, not headers, fill the links."""

from __future__ import annotations

from collections.abc import Callable

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from autoddl.runtime.oneflow.models.blank import blank
from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss
from autoddl.runtime.oneflow.models.moe import MixedLanguageModel, language_loss
from autoddl.runtime.oneflow.models.vgg import Vgg13

Entry = tuple[nn.Module, tuple[flow.Tensor, flow.Tensor], Callable[..., flow.Tensor]]


def mlp(batch: int | None = None) -> Entry:
    """Dense layers of 1024, 1024 and 256 outputs on 512 rows of 512 features."""
    widths = (512, 1024, 1024, 256)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    rows = batch or 512
    example = blank(rows, widths[0]), blank(rows, dtype=flow.int64)
    return nn.Sequential(*layers[:-1]), example, F.cross_entropy


def wide_mlp(batch: int | None = None) -> Entry:
    """6 dense layers of width 1024 on 512 rows: 25 MB of gradients."""
    return _chain(6, 1024, batch or 512)


def real_mlp(batch: int | None = None) -> Entry:
    """8 dense layers of width 768 on 4096 rows, for data parallelism that computes."""
    return _chain(8, 768, batch or 4096)


def chain(batch: int | None = None) -> Entry:
    """8 equal dense layers of width 512 on 4096 rows, for pipelines with emulated compute."""
    return _chain(8, 512, batch or 4096)


def wide_chain(batch: int | None = None) -> Entry:
    """16 equal dense layers of width 1024 on 2048 rows, for pipelines that compute."""
    return _chain(16, 1024, batch or 2048)


def _chain(depth: int, width: int, rows: int) -> Entry:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    example = blank(rows, width), blank(rows, dtype=flow.int64)
    return nn.Sequential(*layers[:-1]), example, F.cross_entropy


def gpt(batch: int | None = None) -> Entry:
    """1 layer of width 256 on 32 sequences of 32 bytes."""
    tokens = blank(batch or 32, 32, dtype=flow.int64)
    return Gpt(1, 256, 8, 32, vocabulary=512), (tokens, tokens), next_token_loss


def gpt_blocks(batch: int | None = None) -> Entry:
    """The same with 2 layers, which are blocks that can be run again."""
    tokens = blank(batch or 32, 32, dtype=flow.int64)
    return Gpt(2, 256, 8, 32, vocabulary=512), (tokens, tokens), next_token_loss


def wide_gpt(batch: int | None = None) -> Entry:
    """2 layers of width 512 on 32 sequences of 32 bytes."""
    tokens = blank(batch or 32, 32, dtype=flow.int64)
    return Gpt(2, 512, 8, 32, vocabulary=512), (tokens, tokens), next_token_loss


def vgg(batch: int | None = None) -> Entry:
    """VGG13 of 16 to 128 channels and 512 wide dense layers on 32 images of 32 x 32."""
    rows = batch or 32
    model = Vgg13(size=32, classes=64, widths=(16, 32, 64, 128, 128), dense=512, dropout=0.0)
    return model, (blank(rows, 3, 32, 32), blank(rows, dtype=flow.int64)), F.cross_entropy


def bert_moe(batch: int | None = None) -> Entry:
    """2 layers of width 256, the second with 8 top-2 experts, on 32 sequences of 32 tokens."""
    model = MixedLanguageModel(2, 256, 4, 32, 512, experts=8, top=2, causal=False)
    tokens = blank(batch or 32, 32, dtype=flow.int64)
    return model, (tokens, tokens), language_loss
