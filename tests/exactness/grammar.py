"""Models by a grammar over shapes: a result is produced from what gives it, down to inputs.

`RandomModel` of tests/runtime grows from its input on; here a result of a shape is asked for, and a
production is drawn that gives it: a product, a concatenation of unequal parts, a reduction, a
convolution, a gather, a mask, ... of results of other shapes, which are asked for in turn. Sizes
are odd, results and weights are shared, and the loss has several terms.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

Shape = tuple[int, ...]  # without the rows
Node = Callable[[dict[str, Any]], flow.Tensor]

SIZES = (2, 3, 4, 5, 6, 7, 8, 12, 13)
ROWS = (12, 12, 12, 8, 6, 7, 13)
TOPS = ((4,), (7,), (6,), (13,))
WORDS, MOST, DEPTH = 11, 400, 6
SMOOTH = (
    flow.tanh, flow.sigmoid, F.gelu, F.silu, F.softplus, flow.sin, lambda x: x * x * 0.5,
    lambda x: flow.exp(-x * x), lambda x: 1 / (1 + x * x), lambda x: -x, lambda x: x - 0.3,
    lambda x: flow.log1p(x * x), lambda x: flow.sqrt(x * x + 1), lambda x: F.leaky_relu(x, 0.1),
    lambda x: F.elu(x, alpha=1.0), flow.erf, flow.atan, F.mish,
)  # fmt: skip


def _deviation(x: flow.Tensor, d: int) -> flow.Tensor:
    return flow.sqrt(((x - x.mean(dim=d, keepdim=True)) ** 2).mean(dim=d) + 0.1)


FOLDS = (
    lambda x, d: x.mean(dim=d), lambda x, d: 0.5 * x.sum(dim=d), lambda x, d: flow.amax(x, dim=d),
    lambda x, d: flow.log(flow.exp(x).sum(dim=d)), _deviation,
    lambda x, d: flow.sqrt((x * x).sum(dim=d) + 0.1), lambda x, d: flow.min(x, dim=d)[0],
)  # fmt: skip


class GrammarModel(nn.Module):
    """(numbers [rows, *shape], words [rows, length]) -> (result [rows, *top], one more result)."""

    def __init__(self, seed: int):
        super().__init__()
        self.draw = random.Random(seed)
        self.rows = self.draw.choice(ROWS)
        self.shape = tuple(self.draw.choice(SIZES) for _ in range(self.draw.choice((1, 2, 2))))
        self.length = self.draw.choice((3, 4, 5, 6))
        self.layers = nn.ModuleList()
        self.values = nn.ParameterList()
        self.names: list[str] = []
        self._known: list[tuple[Shape, Node]] = []
        self._weights: dict[tuple[int, int], nn.Module] = {}
        self.words = self._own(nn.Embedding(WORDS, self.draw.choice((4, 6, 7))))
        top = self.draw.choice(TOPS)
        aside = tuple(self.draw.choice(SIZES) for _ in range(2))
        self.classes = top[0]
        self.top = self._dense(self.produce(top, DEPTH), top[0], top[0])
        self.aside = self.produce(aside, DEPTH - 3)

    def forward(self, x, words):
        known = {"x": x, "words": words}
        return self.top(known), self.aside(known)

    def batch(self, seed: int) -> tuple[flow.Tensor, ...]:
        rng = np.random.default_rng((77, seed))
        x = rng.standard_normal((self.rows, *self.shape)).astype(np.float32)
        words = rng.integers(0, WORDS, (self.rows, self.length))
        return (
            flow.tensor(x),
            flow.tensor(words),
            flow.tensor(rng.integers(0, self.classes, self.rows)),
        )

    # ---- productions

    def produce(self, shape: Shape, depth: int) -> Node:
        """What gives [rows, *shape]."""
        alike = [node for known, node in self._known if known == shape]
        if alike and self.draw.random() < 0.3:
            return self.draw.choice(alike)
        made = self._leaf(shape) if depth <= 0 or np.prod(shape) > MOST else None
        while made is None:
            kind = self.draw.choice(KINDS)
            made = getattr(self, f"_{kind}")(shape, depth - 1)
            if made is not None:
                self.names.append(kind)
        node = self._once(made)
        self._known.append((shape, node))
        return node

    def _once(self, node: Node) -> Node:
        """Computed once in a pass, however often it is read."""
        key = f"node {len(self._known)} of {len(self.names)}"

        def read(known: dict[str, Any]) -> flow.Tensor:
            if key not in known:
                known[key] = node(known)
            return known[key]

        return read

    def _own(self, layer: nn.Module) -> nn.Module:
        self.layers.append(layer)
        return layer

    def _parameter(self, shape: Shape) -> nn.Parameter:
        rng = np.random.default_rng(self.draw.randrange(2**31))
        size = 0.4 * rng.standard_normal(shape)
        self.values.append(nn.Parameter(flow.tensor(size.astype(np.float32))))
        return self.values[-1]

    def _leaf(self, shape: Shape) -> Node:
        if self.draw.random() < 0.3:
            width = self.length * self.words.embedding_dim
            into = self._own(nn.Linear(width, int(np.prod(shape))))
            return lambda k: into(self.words(k["words"]).flatten(1)).reshape(-1, *shape)
        into = self._own(nn.Linear(int(np.prod(self.shape)), int(np.prod(shape))))
        return lambda k: into(k["x"].flatten(1)).reshape(k["x"].shape[0], *shape)

    def _dense(self, node: Node, before: int, after: int) -> Node:
        """Half of the time by a weight that others of the same size use, too."""
        layer = self._weights.get((before, after))
        if layer is None or self.draw.random() < 0.5:
            layer = self._own(nn.Linear(before, after, bias=self.draw.random() < 0.7))
            self._weights[before, after] = layer
        return lambda k: layer(node(k))

    def _linear(self, shape: Shape, depth: int) -> Node:
        before = self.draw.choice(SIZES)
        return self._dense(self.produce((*shape[:-1], before), depth), before, shape[-1])

    def _smooth(self, shape: Shape, depth: int) -> Node:
        node, function = self.produce(shape, depth), self.draw.choice(SMOOTH)
        return lambda k: function(node(k))

    def _added(self, shape: Shape, depth: int) -> Node:
        """With one that is broadcast along some dims."""
        thin = tuple(1 if self.draw.random() < 0.4 else size for size in shape)
        a, b = self.produce(shape, depth), self.produce(thin, depth - 1)
        return self.draw.choice((
            lambda k: a(k) + b(k), lambda k: a(k) - 0.5 * b(k), lambda k: a(k) * flow.tanh(b(k)),
            lambda k: a(k) / (1 + b(k) * b(k)),
        ))  # fmt: skip

    def _outer(self, shape: Shape, depth: int) -> Node | None:
        if len(shape) != 2:
            return None
        a, b = self.produce((shape[0], 1), depth), self.produce((1, shape[1]), depth)
        return self.draw.choice((lambda k: a(k) * b(k), lambda k: a(k) + b(k)))

    def _scaled(self, shape: Shape, depth: int) -> Node:
        """By a parameter that lies along some dims."""
        node = self.produce(shape, depth)
        value = self._parameter(tuple(1 if self.draw.random() < 0.4 else s for s in shape))
        if self.draw.random() < 0.5:
            return lambda k: node(k) * (1 + value)
        return lambda k: node(k) + value

    def _contracted(self, shape: Shape, depth: int) -> Node | None:
        """ik, kj -> ij, of which either may come transposed."""
        if len(shape) != 2:
            return None
        size, turned = self.draw.choice(SIZES), self.draw.random() < 0.5
        a = self.produce((shape[0], size), depth)
        b = self.produce((shape[1], size) if turned else (size, shape[1]), depth)
        scale = size**-0.5
        if turned:
            return lambda k: scale * flow.matmul(a(k), b(k).transpose(1, 2))
        return lambda k: scale * flow.matmul(a(k), b(k))

    def _joined(self, shape: Shape, depth: int) -> Node | None:
        """Of two parts, which are seldom equal."""
        dim = self.draw.randrange(len(shape))
        if shape[dim] < 2:
            return None
        first = self.draw.randint(1, shape[dim] - 1)
        parts = [
            self.produce((*shape[:dim], size, *shape[dim + 1 :]), depth)
            for size in (first, shape[dim] - first)
        ]
        return lambda k: flow.cat([part(k) for part in parts], dim=dim + 1)

    def _cut(self, shape: Shape, depth: int) -> Node:
        dim, more = self.draw.randrange(len(shape)), self.draw.choice((1, 2, 5))
        start = self.draw.randint(0, more)
        wide = self.produce((*shape[:dim], shape[dim] + more, *shape[dim + 1 :]), depth)
        return lambda k: flow.narrow(wide(k), dim + 1, start, shape[dim])

    def _folded(self, shape: Shape, depth: int) -> Node | None:
        if len(shape) > 2:
            return None
        dim, size = self.draw.randint(0, len(shape)), self.draw.choice(SIZES)
        node, fold = (
            self.produce((*shape[:dim], size, *shape[dim:]), depth),
            self.draw.choice(FOLDS),
        )
        return lambda k: fold(node(k), dim + 1)

    def _turned(self, shape: Shape, depth: int) -> Node | None:
        if len(shape) < 2:
            return None
        order = self.draw.sample(range(len(shape)), len(shape))
        before = [0] * len(shape)
        for to, source in enumerate(order):
            before[source] = shape[to]
        node = self.produce(tuple(before), depth)
        return lambda k: node(k).permute(0, *(d + 1 for d in order))

    def _merged(self, shape: Shape, depth: int) -> Node | None:
        """A dim that was two."""
        dim = self.draw.randrange(len(shape))
        sizes = [n for n in range(2, shape[dim]) if shape[dim] % n == 0]
        if not sizes or len(shape) > 2:
            return None
        size = self.draw.choice(sizes)
        node = self.produce((*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :]), depth)
        return lambda k: node(k).reshape(-1, *shape)

    def _parted(self, shape: Shape, depth: int) -> Node | None:
        if len(shape) < 2:
            return None
        node = self.produce((shape[0] * shape[1], *shape[2:]), depth)
        return lambda k: node(k).reshape(-1, *shape)

    def _normalised(self, shape: Shape, depth: int) -> Node | None:
        if shape[-1] < 3:
            return None
        node, how = self.produce(shape, depth), self.draw.choice(("layer", "rms", "l2", "group"))
        if how == "layer":
            dims = shape[-2:] if len(shape) > 1 and self.draw.random() < 0.3 else shape[-1:]
            layer = self._own(nn.LayerNorm(dims))
            return lambda k: layer(node(k))
        if how == "rms":
            scale = self._parameter(shape[-1:])

            def rms(k: dict[str, Any]) -> flow.Tensor:
                x = node(k)
                return x * flow.rsqrt((x * x).mean(dim=-1, keepdim=True) + 0.1) * scale

            return rms
        if how == "l2":
            return lambda k: F.normalize(node(k) + 0.01, dim=-1)
        if len(shape) < 2 or shape[0] % 2:
            return None
        group = self._own(nn.GroupNorm(2, shape[0]))
        return lambda k: group(node(k))

    def _over_rows(self, shape: Shape, depth: int) -> Node | None:
        """Rows of the batch meet."""
        if self.draw.random() < 0.6:
            return None
        node = self.produce(shape, depth)
        if len(shape) in (1, 3) and self.rows > 2:
            norm = self._own(
                nn.BatchNorm1d(shape[0]) if len(shape) == 1 else nn.BatchNorm2d(shape[0])
            )
            return lambda k: norm(node(k))
        return lambda k: node(k) - 0.5 * node(k).mean(dim=0, keepdim=True)

    def _weighed(self, shape: Shape, depth: int) -> Node:
        node, dim = self.produce(shape, depth), self.draw.randrange(len(shape)) + 1
        if self.draw.random() < 0.5:
            return lambda k: F.softmax(node(k), dim=dim)
        return lambda k: 0.5 * F.log_softmax(node(k), dim=dim)

    def _masked(self, shape: Shape, depth: int) -> Node:
        """By what the model is told, or by another result."""
        node = self.produce(shape, depth)
        if self.draw.random() < 0.5:
            rng = np.random.default_rng(self.draw.randrange(2**31))
            name = f"mask{len(self.names)}_{len(self._known)}"
            self.register_buffer(name, flow.tensor(rng.random(shape) < 0.3))
            return lambda k: node(k).masked_fill(getattr(self, name), -0.7)
        other = self.produce(shape, depth - 1)
        return lambda k: flow.where(other(k) > 0.05, node(k), 0.2 * node(k))

    def _taken(self, shape: Shape, depth: int) -> Node:
        """Some twice, some not at all."""
        dim, size = self.draw.randrange(len(shape)), self.draw.choice(SIZES)
        node = self.produce((*shape[:dim], size, *shape[dim + 1 :]), depth)
        name = f"index{len(self.names)}_{len(self._known)}"
        rng = np.random.default_rng(self.draw.randrange(2**31))
        self.register_buffer(name, flow.tensor(rng.integers(0, size, shape[dim])))
        return lambda k: flow.index_select(node(k), dim + 1, getattr(self, name))

    def _looked_up(self, shape: Shape, depth: int) -> Node:
        """The mean over words of what an embedding of its own has."""
        table = self._own(nn.Embedding(WORDS, int(np.prod(shape))))
        return lambda k: table(k["words"]).mean(dim=1).reshape(-1, *shape)

    def _running(self, shape: Shape, depth: int) -> Node:
        node, dim = self.produce(shape, depth), self.draw.randrange(len(shape)) + 1
        return lambda k: 0.3 * flow.cumsum(node(k), dim=dim)

    def _convolved(self, shape: Shape, depth: int) -> Node | None:
        """In one or two dims; with padding, strides, dilation or groups."""
        if len(shape) not in (2, 3):
            return None
        inner, kernel = self.draw.choice((2, 4, 6)), self.draw.choice((1, 2, 3))
        groups = 2 if shape[0] % 2 == 0 and self.draw.random() < 0.3 else 1
        dilation = self.draw.choice((1, 1, 2))
        padding = self.draw.choice((0, kernel // 2))
        sides = tuple(size - 2 * padding + dilation * (kernel - 1) for size in shape[1:])
        if min(sides) < 1:
            return None
        kind = nn.Conv1d if len(shape) == 2 else nn.Conv2d
        layer = self._own(kind(
            inner, shape[0], kernel, padding=padding, dilation=dilation, groups=groups,
        ))  # fmt: skip
        node = self.produce((inner, *sides), depth)
        return lambda k: layer(node(k))

    def _pooled(self, shape: Shape, depth: int) -> Node | None:
        if len(shape) != 3 or np.prod(shape) > MOST / 4:
            return None
        node = self.produce((shape[0], 2 * shape[1], 2 * shape[2]), depth)
        pool = self.draw.choice((F.avg_pool2d, F.max_pool2d))
        return lambda k: pool(node(k), 2)

    def _pixels(self, shape: Shape, depth: int) -> Node | None:
        """A picture of each row's numbers: so that convolutions are reached."""
        if len(shape) != 1:
            return None
        image = (self.draw.choice((2, 4)), self.draw.choice((4, 5, 6)), 4)
        node, size = self.produce(image, depth), int(np.prod(image))
        layer = self._own(nn.Linear(size, shape[0]))
        return lambda k: layer(node(k).flatten(1))


KINDS = (
    "linear", "linear", "smooth", "smooth", "added", "added", "outer", "scaled", "contracted",
    "contracted", "joined", "joined", "cut", "folded", "folded", "turned", "merged", "parted",
    "normalised", "normalised", "over_rows", "weighed", "masked", "taken", "looked_up", "running",
    "convolved", "convolved", "pooled", "pixels", "pixels",
)  # fmt: skip


def loss(results: Sequence[flow.Tensor], target: flow.Tensor) -> flow.Tensor:
    """Of three terms."""
    top, aside = results
    first = F.cross_entropy(top, target)
    return first + 0.1 * (aside * aside).mean() + 0.05 * flow.abs(top).mean()
