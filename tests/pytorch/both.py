"""Models that are written once for two frameworks: `flow` is the module oneflow, or torch."""

from typing import Any

import numpy as np

ROWS, LENGTH, WORDS, WIDTH, HEADS = 8, 8, 32, 16, 4


def mlp(flow: Any):
    nn = flow.nn
    model = nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 8)
    )
    return model, nn.CrossEntropyLoss()


def gpt(flow: Any):
    """Two blocks, with an additive causal mask and its embedding tied to its head.

    OneFlow writes LayerNorm out on a CPU, and means everywhere; torch does not, so they are here.
    """
    nn = flow.nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(flow.ones(WIDTH))
            self.bias = nn.Parameter(flow.zeros(WIDTH))

        def forward(self, x):
            x = x - x.sum(-1, keepdim=True) * (1 / WIDTH)
            spread = flow.rsqrt((x * x).sum(-1, keepdim=True) * (1 / WIDTH) + 1e-5)
            return x * spread * self.weight + self.bias

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = Norm(), Norm()
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x, mask):
            rows, size = x.shape[0], WIDTH // HEADS
            heads = self.qkv(self.norm1(x)).reshape(rows, LENGTH, HEADS, 3 * size)
            heads = heads.permute(0, 2, 1, 3)
            q, k, v = (heads.narrow(-1, n * size, size) for n in range(3))
            scores = flow.matmul(q, k.transpose(-1, -2)) * size**-0.5 + mask
            mixed = flow.matmul(flow.softmax(scores, dim=-1), v)
            x = x + self.proj(mixed.permute(0, 2, 1, 3).reshape(rows, LENGTH, WIDTH))
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.words.weight
            self.register_buffer("mask", flow.triu(flow.full((LENGTH, LENGTH), -1e4), 1))

        def forward(self, words):
            x = self.words(words)
            for block in self.blocks:
                x = block(x, self.mask)
            return self.head(self.norm(x))

    def next_word(scores, target):
        return nn.functional.cross_entropy(scores.reshape(-1, WORDS), target.reshape(-1))

    return Gpt(), next_word


MODELS = {"mlp": mlp, "gpt": gpt}


def batch(name: str, step: int) -> list[np.ndarray]:
    """Inputs and target of a step."""
    rng = np.random.default_rng(step)
    if name == "mlp":
        return [rng.standard_normal((ROWS, 12)).astype(np.float32), rng.integers(0, 8, ROWS)]
    return [rng.integers(0, WORDS, (ROWS, LENGTH)) for _ in range(2)]
