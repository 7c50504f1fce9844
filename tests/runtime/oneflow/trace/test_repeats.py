"""Layers that are alike are recorded a few times only, and the graph is the same as without."""

from collections import deque
from typing import Any

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

import autoddl
from autoddl.graph.graph import Graph
from autoddl.runtime.oneflow.models import moe
from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss
from autoddl.runtime.oneflow.trace import trace as tracing
from autoddl.runtime.oneflow.trace.job import repeats
from tests.runtime.oneflow.trace.toys import WIDTH, rows

DEPTH = 6
counted: list[int] = []
told: deque[flow.Tensor] = deque()


class Layer(nn.Module):
    """A residual layer; `number` counts layers, and is not kept."""

    def __init__(self, number):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


class Stack(nn.Module):
    """Layers in a row, behind one that makes all their inputs need gradients."""

    def __init__(self, layer=Layer):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([layer(number) for number in range(DEPTH)])

    def forward(self, x):
        counted.clear()
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Numbered(Layer):
    """Each by an attribute of its own."""

    def __init__(self, number):
        super().__init__(number)
        self.factor = 1.0 + number

    def forward(self, x):
        return super().forward(x) * self.factor


class Frozen(Layer):
    """Half of them do not train."""

    def __init__(self, number):
        super().__init__(number)
        self.linear.weight.requires_grad = number < DEPTH // 2


class Hooked(Layer):
    """One with a hook of the user's."""

    def __init__(self, number):
        super().__init__(number)
        if number == 3:
            self.linear.register_forward_hook(lambda module, args, result: result * 2)


class Counting(Layer):
    """By a global counter."""

    def forward(self, x):
        counted.append(len(counted))
        return super().forward(x) * (2.0 if len(counted) < 4 else 3.0)


class Keeping(Layer):
    """The layer keeps what its owner reads afterwards."""

    def forward(self, x):
        self.kept = self.linear(x)
        return super().forward(x)


class Sum(Stack):
    """What the layers kept counts, too."""

    def __init__(self):
        super().__init__(Keeping)

    def forward(self, x):
        x = super().forward(x)
        return sum((layer.kept for layer in self.layers), x)


class Telling(Layer):
    """Gives something to others by a global object, into which nobody looks."""

    def forward(self, x):
        told.append(self.linear(x))
        return super().forward(x)


class Collecting(Stack):
    """What the layers told counts, too."""

    def __init__(self):
        super().__init__(Telling)

    def forward(self, x):
        told.clear()
        x = super().forward(x)
        return sum(told, x)


class Writing(Layer):
    """Changes what it is given."""

    def forward(self, x):
        x += 1
        return super().forward(x)


class Statistics(Layer):
    """With a BatchNorm, which changes its buffers and has them in the graph."""

    def __init__(self, number):
        super().__init__(number)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return super().forward(self.norm(x))


class Noisy(Layer):
    """Draws in training only, so that two modes are traced."""

    def forward(self, x):
        return super().forward(x + flow.rand(*x.shape) if self.training else x)


class Pairs(Stack):
    """Tuples and equal arguments, and every layer twice."""

    class Pair(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.layer = Layer(number)

        def forward(self, x, others):
            y = self.layer(x) + others["first"] * others["second"]
            return {"first": y, "given": x}, y

    def __init__(self):
        super().__init__(self.Pair)

    def forward(self, x):
        x = self.first(x)
        others = {"first": x, "second": x}
        for layer in (*self.layers, *self.layers):
            found, y = layer(x, others)
            others = {"first": found["given"], "second": y}
            x = found["first"]
        return x


class Loose(Layer):
    """Of a file that is not imported, so that its globals are not found."""

    __module__ = "loose"


class Captured(Stack):
    """Reads a tensor that is no parameter, behind the layers."""

    def __init__(self):
        super().__init__()
        self.factors = flow.tensor([float(n) for n in range(WIDTH)])

    def forward(self, x):
        return super().forward(x) * self.factors


class Tied(Stack):
    """Two of the layers have one weight."""

    def __init__(self):
        super().__init__()
        self.layers[4].linear.weight = self.layers[1].linear.weight


class Hinted(Stack):
    """Hints around the calls of layers, and in them."""

    class Inside(Layer):
        def forward(self, x):
            with autoddl.split(2):
                return self.linear(x)

    def __init__(self):
        super().__init__()
        self.others = nn.ModuleList([self.Inside(number) for number in range(DEPTH)])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            with autoddl.replicate():
                x = layer(x)
        for layer in self.others:
            x = layer(x)
        return x


def traced(
    model: nn.Module, *example: flow.Tensor, loss: Any = F.mse_loss
) -> tuple[Graph, list[int]]:
    """The graph, and of each job the calls that did not run."""
    skipped = []

    def counting(raw, kinds, copies, results):
        found = repeats.expanded(raw, kinds, copies, results)
        skipped.append(0 if found.unlike else len(copies))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "expanded", counting)
        return tracing.trace(model, *example, loss=loss), skipped


def as_recorded_in_full(model: nn.Module, *example: flow.Tensor, loss: Any = F.mse_loss) -> Graph:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "built_alike", lambda model: [])
        graph, skipped = traced(model, *example, loss=loss)
    assert not any(skipped)
    return graph


ALIKE = DEPTH - 3  # in a job, and in the next all but the first
CASES = {
    "equal": (Stack, [ALIKE, DEPTH - 1]),
    "statistics": (lambda: Stack(Statistics), [ALIKE, DEPTH - 1]),
    "noisy": (lambda: Stack(Noisy), [ALIKE, DEPTH - 1, ALIKE]),
    "pairs": (Pairs, [8, 11]),  # 7 and 9 pairs, and layers in those that run
    "captured": (Captured, [ALIKE, DEPTH - 1]),
    "tied": (Tied, [ALIKE, DEPTH - 1]),
    "hinted": (Hinted, [ALIKE, DEPTH - 1]),
    "numbered": (lambda: Stack(Numbered), [0, 0]),
    "frozen": (lambda: Stack(Frozen), [0, 0]),
    "hooked": (lambda: Stack(Hooked), [1, 2]),
    "counting": (lambda: Stack(Counting), [0, 0]),
    "loose": (lambda: Stack(Loose), [0, 0]),
    "keeping": (Sum, [0, 0]),
    "collecting": (Collecting, [0, 0, 0]),
    "writing": (lambda: Stack(Writing), [0, 0]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_same_as_of_all_layers(name):
    model, skipped = CASES[name]
    built = model()
    example = rows(), rows()
    graph, found = traced(built, *example)
    assert graph.to_json() == as_recorded_in_full(built, *example).to_json()
    assert found == skipped
    assert not hasattr(built.layers[0], "kept")


def test_transformers_and_experts_are_recorded_once():
    tokens = flow.zeros(2, 8, dtype=flow.int64)
    gpt = Gpt(6, 16, 2, 8, vocabulary=32, dropout=0.1)
    experts = moe.MixedLanguageModel(8, 16, 2, 8, 32, 4, 2, causal=False)
    for model, loss in ((gpt, next_token_loss), (experts, moe.language_loss)):
        graph, skipped = traced(model, tokens, tokens, loss=loss)
        assert graph.to_json() == as_recorded_in_full(model, tokens, tokens, loss=loss).to_json()
        assert min(skipped) > 0
