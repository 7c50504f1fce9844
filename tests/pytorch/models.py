"""Small models of the kinds that people train, with data; none of them drops anything."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from autoddl import batchwise, opaque
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan

Batch = tuple[torch.Tensor, torch.Tensor]
Built = tuple[nn.Module, Callable, Callable[[int], Batch]]
ROWS = 8


def traced(model, *shape, loss=F.mse_loss):
    """The trace of what takes one tensor, whose target has the same shape."""
    return trace_with_state(model, torch.zeros(*shape), torch.zeros(*shape), loss=loss)


def trained(traced_model):
    """Names of the parameters that a gradient reaches."""
    graph = traced_model.graph
    return {op.attrs["name"] for op in graph.params if op.outputs[0] in graph.needs_grad}


def same_gradients(model, *batch, loss=F.mse_loss):
    """One step of the trace alone changes the parameters as eager autograd does."""
    found = trace_with_state(model, *batch, loss=loss)
    plan = random_plan(found.graph, cluster_of(1, 1), 0)
    trainer = build_trainer(found, plan, lambda p: torch.optim.SGD(p, lr=0.1))
    given = float(trainer.step(*batch))  # first, as eager torch moves statistics of the model
    value = loss(model(*batch[:-1]), batch[-1])
    value.backward()
    assert relative(given, value.item()) < 1e-6
    state = trainer.state_dict()
    for name, parameter in model.named_parameters():
        step = 0.0 if parameter.grad is None else 0.1 * parameter.grad
        torch.testing.assert_close(state[name], parameter.detach() - step)
    for name in state.keys() & dict(model.named_buffers()):
        torch.testing.assert_close(state[name], model.get_buffer(name))
    return found


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 8)
        )


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        packed = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    """Its embedding is tied to its head."""

    def __init__(self, blocks=2, width=32, heads=4, words=64, length=16):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """RMS norms, rotary embeddings, two heads of k and v for four of q, a gated MLP."""

    def __init__(self, width, heads, groups, length):
        super().__init__()
        self.heads, self.groups, each = heads, groups, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * each, bias=False) for _ in "kv")
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in "gu")
        self.down = nn.Linear(2 * width, width, bias=False)
        turns = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, each, 2) / each)
        self.register_buffer("cos", torch.cat([turns.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([turns.sin()] * 2, -1))

    def turned(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), -1) * self.sin

    def forward(self, x):
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.turned(self.q(y).view(b, t, self.heads, -1).transpose(1, 2))
        k = self.turned(self.k(y).view(b, t, self.groups, -1).transpose(1, 2))
        v = self.v(y).view(b, t, self.groups, -1).transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, blocks=2, width=32, words=64, length=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, 4, 2, length) for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in "12"
        )
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.norm(self.conv1(x)))
        y = self.norm(self.conv2(y))  # which moves its statistics again
        y += x
        return self.relu(y)


class ResNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 10),
        )  # fmt: skip


class Decides(nn.Module):
    """Looks at values, row by row."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("shift", torch.linspace(-1, 1, width))

    def forward(self, x, scale=1.0):
        rows = [row if float(row.sum()) > 0 else 2 * row for row in self.layer(x) + self.shift]
        return {"small": scale * torch.stack(rows), "signs": x.sign().detach()}


class Spectrum(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.fft.fft(x * self.weight).abs()


class Rounded(torch.autograd.Function):
    """With a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        return (3 * x).round() / 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Rounds(nn.Module):
    def forward(self, x):
        return Rounded.apply(x)


class Ctc(nn.Module):
    """Rows in front, where torch has the steps."""

    def forward(self, logits, target):
        n, steps, _ = logits.shape
        lengths = torch.full((n,), steps), torch.full((n,), target.shape[1])
        own = logits.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(own, target, *lengths, reduction="none")


class AsTheyAre(nn.Module):
    """Modules that torch.export cannot record, or that have no rule, called once and twice."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 4 * 6)
        self.decides, self.rounds = batchwise(Decides(width)), batchwise(Rounds())
        self.spectrum = batchwise(Spectrum(width))

    def forward(self, x):
        x = self.first(x)
        once = self.decides(x)
        x = self.rounds(once["small"]) + once["signs"]
        x = self.spectrum(x) + self.decides(x, scale=0.5)["small"]
        return self.last(x).unflatten(1, (4, 6))


class Normalised(nn.Sequential):
    """A module that changes its buffers, and so runs whole."""

    def __init__(self):
        inner = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 12))
        super().__init__(nn.Linear(12, 12), opaque(inner), nn.Tanh(), nn.Linear(12, 8))


class Likelihood(nn.Module):
    """Of a normal distribution, which torch checks by its values."""

    def __init__(self):
        super().__init__()
        self.each = batchwise(nn.GaussianNLLLoss(reduction="none"))

    def forward(self, output, target):
        mean, variance = output.chunk(2, -1)
        return self.each(mean, target, F.softplus(variance)).mean()


class MeanCtc(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = batchwise(Ctc())

    def forward(self, output, target):
        return self.each(output, target + 1).mean()


def next_word(logits, target):
    """Word 0 is padding: it cannot come, and does not count."""
    padding = torch.arange(logits.shape[-1], device=logits.device) == 0
    logits = logits.masked_fill(padding, float("-inf"))
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=0)


def batches(shape, top, target_shape, target_top) -> Callable[[int], Batch]:
    """Inputs and target by the step's number: floats, or whole numbers below the tops."""

    def drawn(shape, top, generator):
        if top:
            return torch.randint(0, top, shape, generator=generator)
        return torch.randn(shape, generator=generator)

    def batch(step):
        generator = torch.Generator().manual_seed(1000 + step)
        return drawn(shape, top, generator), drawn(target_shape, target_top, generator)

    return batch


WORDS = ((ROWS, 16), 64, (ROWS, 16), 64)
MODELS: dict[str, Callable[[], Built]] = {
    "mlp": lambda: (Mlp(), F.mse_loss, batches((ROWS, 12), 0, (ROWS, 8), 0)),
    "even": lambda: (  # over eight devices
        nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16)), F.mse_loss,
        batches((ROWS, 16), 0, (ROWS, 16), 0),
    ),
    "gpt": lambda: (Gpt(), next_word, batches(*WORDS)),
    "llama": lambda: (Llama(), next_word, batches(*WORDS)),
    "resnet": lambda: (
        ResNet(), nn.CrossEntropyLoss(), batches((ROWS, 3, 8, 8), 0, (ROWS,), 10)
    ),
    "as_they_are": lambda: (AsTheyAre(), MeanCtc(), batches((ROWS, 12), 0, (ROWS, 2), 5)),
    "normalised": lambda: (Normalised(), Likelihood(), batches((ROWS, 12), 0, (ROWS, 4), 0)),
}  # fmt: skip


def build(name: str, seed: int = 0) -> Built:
    torch.manual_seed(seed)
    return MODELS[name]()


def relative(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), math.ulp(1.0))
