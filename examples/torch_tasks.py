"""What the demo of PyTorch trains: a small Llama on Python's library, a small ResNet on digits.

Run as a process of the demo, `python -m examples.torch_tasks NAME LOSSES [PLAN]` trains one of them
and writes its losses: as a rank of a parallel job with PLAN, else alone, in plain eager torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoddl
from autoddl._files import write_atomically

from .library import library_text

SEED = 7
STEPS = 24
Batch = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Two heads of keys and values for each four of queries, with rotary positions."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, each = heads, width // heads
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in "qo")
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in "kv")
        turns = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, each, 2) / each)
        self.register_buffer("cos", torch.cat([turns.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([turns.sin()] * 2, -1), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (
            made(x).view(rows, length, count, -1).transpose(1, 2)
            for made, count in (
                (self.q, self.heads),
                (self.k, self.heads // 2),
                (self.v, self.heads // 2),
            )
        )
        seen = F.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True
        )
        return self.o(seen.transpose(1, 2).reshape(rows, length, width))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, length)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in "gu")
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Of bytes."""

    def __init__(self, blocks: int = 2, width: int = 128, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, length) for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, as in a ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip


def next_byte(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def windows(length: int = 32, rows: int = 16) -> list[Batch]:
    """Of the text of Python's library, and the bytes that follow each byte."""
    text = torch.from_numpy(library_text(STEPS * rows * length + 1).astype(np.int64))
    return [
        (text[start:end].view(rows, length), text[start + 1 : end + 1].view(rows, length))
        for start in range(0, STEPS * rows * length, rows * length)
        for end in [start + rows * length]
    ]


def digits(rows: int = 32) -> list[Batch]:
    """scikit-learn's handwritten digits, each pixel a 2 x 2 square."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    standard = ((images - images.mean()) / images.std()).astype(np.float32).reshape(-1, 1, 8, 8)
    x = torch.from_numpy(np.kron(standard, np.ones((2, 2), np.float32)))
    y = torch.from_numpy(labels.astype(np.int64))
    return [(x[n : n + rows], y[n : n + rows]) for n in range(0, STEPS * rows, rows)]


@dataclass(frozen=True)
class Task:
    """`build` gives (model, example, loss); each step takes the next of `batches`.

    lr: AdamW's; small enough that rounding does not grow much over the demo's steps
    """

    title: str
    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    batches: Callable[[], list[Batch]]
    lr: float

    def build(self) -> tuple[nn.Module, Batch, Callable[..., Tensor]]:
        torch.manual_seed(SEED)
        return self.model(), self.batches()[0], self.loss

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr)


TASKS = {
    "llama": Task(
        "Llama (small) on the source text of Python's library", Llama, next_byte, windows, 1e-3
    ),
    "resnet": Task(
        "ResNet (small) on handwritten digits", ResNet, nn.CrossEntropyLoss(), digits, 1e-4
    ),
}


def train_alone(task: Task) -> list[float]:
    """The losses of eager torch in one process: what autoddl has to reproduce."""
    model, _, loss_of = task.build()
    optimizer = task.optimizer(model.parameters())
    losses: list[float] = []
    for x, y in task.batches():
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_parallel(task: Task, plan: autoddl.Plan) -> tuple[list[float], bool]:
    """The losses of the parallel job, and whether this process is its first rank."""
    model, example, loss_of = task.build()
    trainer = autoddl.parallelize(
        model, plan.cluster, example=example, loss=loss_of, optimizer=task.optimizer, plan=plan
    )
    return [float(trainer.step(x, y)) for x, y in task.batches()], trainer.is_main


def main(name: str, losses_file: str, plan_file: str | None = None) -> None:
    torch.set_num_threads(1)
    task, is_main = TASKS[name], True
    if plan_file is None:
        losses = train_alone(task)
    else:
        losses, is_main = train_parallel(task, autoddl.Plan.load(plan_file))
    if is_main:
        write_atomically(Path(losses_file), json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
