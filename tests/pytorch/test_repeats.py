"""Layers that ask torch for the same are recorded once, and the graph is that of all of them."""

import pytest
import torch
from torch import nn

import autoddl
from autoddl.runtime.torch.trace.repeats import Notes

WIDTH, DEPTH = 8, 3


class Layer(nn.Module):
    """A block with all that a layer may have."""

    def __init__(self, number):
        super().__init__()
        self.number = number  # which nothing reads
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, WIDTH)
        )
        self.register_buffer("scale", torch.full((WIDTH,), number + 0.5))

    def forward(self, x, shift):
        return x + self.inner(self.norm(x)) * self.scale + shift


class ByNumber(Layer):
    def forward(self, x, shift):
        return super().forward(x, shift) * (1 + self.number)


class InPlace(Layer):
    def forward(self, x, shift):
        x += self.inner(self.norm(x))
        return x


class Telling(Layer):
    """Its own loss leaves by an attribute."""

    def forward(self, x, shift):
        y = super().forward(x, shift)
        self.told = y.square().mean()
        return y


class Several(Layer):
    """Gives back one of its arguments, too, and a tensor that nobody reads."""

    def forward(self, x, shift):
        y = super().forward(x, shift)
        return {"y": y, "shift": shift, "unread": y.exp()}


class Detaching(Layer):
    def forward(self, x, shift):
        with torch.no_grad():
            size = x.abs().mean(-1, keepdim=True)
        return super().forward(x / size, shift)


class Stack(nn.Module):
    def __init__(self, layers, uses=1):
        super().__init__()
        self.layers, self.uses = nn.ModuleList(layers), uses
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        shift, told = torch.arange(WIDTH) / 10.0, 0.0
        for layer in [*self.layers] * self.uses:
            y = layer(x * 1.5, shift)
            x, shift = (y["y"], y["shift"]) if isinstance(y, dict) else (y, shift)
        for layer in self.layers:
            told = told + getattr(layer, "told", 0.0)
        return self.head(x) + told


def layers(kind):
    return [kind(n) for n in range(DEPTH)]


def mixed():
    return [kind(n) for n in range(3) for kind in (Layer, Several)]


def frozen():
    found = layers(Layer)
    for layer in found[:2]:
        layer.requires_grad_(False)
    return found


CASES = {
    "alike": (lambda: Stack(layers(Layer)), [3]),
    "several results": (lambda: Stack(layers(Several)), [3]),
    "regions without a gradient": (lambda: Stack(layers(Detaching)), [3]),
    "two kinds in turn": (lambda: Stack(mixed()), [3, 3]),
    "unlike by a number": (lambda: Stack(layers(ByNumber)), []),
    "two of them alike": (lambda: Stack(frozen()), []),
    "an argument changed": (lambda: Stack(layers(InPlace)), []),
    "results by another way": (lambda: Stack(layers(Telling)), []),
    "used twice": (lambda: Stack(layers(Layer), uses=2), []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_that_of_all_layers(case, monkeypatch):
    make, sizes = CASES[case]
    found, own = [], Notes.groups
    example = torch.zeros(6, WIDTH), torch.zeros(6, dtype=torch.int64)

    def traced():
        return autoddl.trace(make(), *example, loss=nn.functional.cross_entropy)

    monkeypatch.setattr(Notes, "groups", lambda self: found.extend(own(self)) or own(self))
    once = traced()
    assert [len(group.paths) for group in found] == sizes
    monkeypatch.setattr(Notes, "groups", lambda self: ())
    assert once.to_json() == traced().to_json()
    assert once.batch == 6


def test_only_the_first_of_equal_layers_runs(monkeypatch):
    model, calls = Stack(layers(Layer)), []
    own = Layer.forward
    monkeypatch.setattr(
        Layer, "forward", lambda s, *given: calls.append(s.number) or own(s, *given)
    )
    autoddl.trace(
        model,
        torch.zeros(6, WIDTH),
        torch.zeros(6, dtype=torch.int64),
        loss=nn.functional.cross_entropy,
    )
    assert calls == [0, 1, 2, 0]
    assert all("forward" not in layer.__dict__ for layer in model.layers)
