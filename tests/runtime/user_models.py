"""Small models as people write them: recurrent, Llama's block, shared blocks, structures."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tests.framework import F, flow, nn
from tests.runtime.small_models import classes, floats, mean_square, whole

WORDS, WIDTH, LENGTH = 32, 16, 4


class Recurrent(nn.Module):
    """A language model of an LSTM of two layers and a GRU that reads both ways."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WORDS)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, bidirectional=True)

    def forward(self, ids, states):
        given = tuple(state.transpose(0, 1) for state in states)  # [layers, rows, width]
        x, (h, c) = self.lstm(self.embed(ids), given)
        y, _ = self.gru(x.transpose(0, 1))
        return self.out(y.transpose(0, 1)) + (h * c).mean((0, 2)).reshape(-1, 1, 1)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(flow.ones(WIDTH))

    def forward(self, x):
        return x * flow.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Llama's: RMS norms, rotary embeddings, four heads for two of keys and values, SwiGLU."""

    def __init__(self, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, WIDTH // heads
        narrow = groups * self.each
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, narrow, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.each).transpose(1, 2)

    def rotated(self, x):
        speed = 10000 ** (-flow.arange(0, self.each, 2).to(flow.float32) / self.each)
        angle = flow.arange(x.shape[2]).to(flow.float32).unsqueeze(1) * speed
        angle = flow.cat([angle, angle], dim=-1)
        a, b = x.chunk(2, dim=-1)
        return x * angle.cos() + flow.cat([-b, a], dim=-1) * angle.sin()

    def attention(self, x):
        rows, length, _ = x.shape
        q, k = self.rotated(self.split(self.q(x), 4)), self.rotated(self.split(self.k(x), 2))
        many = (rows, self.groups, self.heads // self.groups, length, self.each)
        k, v = (
            z.unsqueeze(2).expand(*many).reshape(rows, self.heads, length, self.each)
            for z in (k, self.split(self.v(x), 2))
        )
        scores = flow.matmul(q, k.transpose(-1, -2)) * self.each**-0.5
        later = flow.triu(flow.ones(length, length), 1) > 0
        scores = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        return self.out(flow.matmul(scores, v).transpose(1, 2).reshape(rows, length, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Two blocks, with the embedding's weight for the logits."""

    def __init__(self, repeats=1):
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), RMSNorm()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.repeats = repeats

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(self.repeats):
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(x))


@dataclass
class Result:
    """As Hugging Face's models give."""

    logits: Any
    hidden: dict[str, Any]
    loss: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, state, *, scale=1.0, extra=None):
        x = F.gelu(self.layer(state["x"])) * scale
        return {"x": x if extra is None else x + extra[0], "pair": Pair(x, state["x"])}


class Structured(nn.Module):
    """Dicts, tuples, dataclasses and keywords, within the model and around it."""

    def __init__(self):
        super().__init__()
        self.steps, self.out = nn.ModuleList([Step(), Step()]), nn.Linear(8, 8)

    def forward(self, pair, named, scale=2.0):
        first, second = self.steps
        state = first({"x": pair[0]}, scale=scale, extra=[named["extra"]])
        state = second(state=state, extra=(pair[1],))
        return Result(self.out(state["x"]), {"pair": state["pair"], "note": "kept"})


def structured_loss(output, target):
    return mean_square(output.logits, target) + output.hidden["pair"].second.mean()


class Density(nn.Module):
    """The parameters of a mixture of normal distributions."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, WIDTH)
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, 3) for name in ("share", "mean", "log")})

    def forward(self, x):
        x = flow.tanh(self.hidden(x))
        return {name: head(x) for name, head in self.heads.items()}


def likelihood(output, target):
    each = -0.5 * ((target[:, :1] - output["mean"]) * flow.exp(-output["log"])) ** 2
    each = F.log_softmax(output["share"], dim=-1) + each - output["log"]
    return -flow.logsumexp(each, dim=-1).mean()


def words(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return whole(rng, WORDS, n, LENGTH), whole(rng, WORDS, n, LENGTH)


def words_and_states(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    ids, target = words(rng, n)
    return ids, (floats(rng, n, 2, WIDTH), floats(rng, n, 2, WIDTH)), target


def nested(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    x, y, extra, target = (floats(rng, n, 8) for _ in range(4))
    return (x, y), {"extra": extra}, target


def rows(rng: np.random.Generator, n: int) -> tuple[Any, ...]:
    return floats(rng, n, 8), floats(rng, n, 8)


USERS = {
    "recurrent": (Recurrent, classes, words_and_states),
    "llama": (Llama, classes, words),
    "universal": (lambda: Llama(repeats=2), classes, words),
    "structured": (Structured, structured_loss, nested),
    "density": (Density, likelihood, rows),
}
