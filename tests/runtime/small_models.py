"""Small models of the operators that autoddl knows, and batches for them."""

import numpy as np

from tests.framework import F, flow, nn


class Perceptron(nn.Module):
    """Three dense layers."""

    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.third = nn.Linear(width, 8)

    def forward(self, x):
        return self.third(F.gelu(self.second(F.relu(self.first(x)))))


class ConvNet(nn.Module):
    """Convolutions, BatchNorm, also of what nobody reads, pooling, a residual and a dense layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.aside = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
        self.pool = nn.MaxPool2d(2)
        self.dense = nn.Linear(8 * 4 * 4, 8)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        self.aside(x)
        x = self.pool(x + F.relu(self.bn2(self.conv2(x))))
        return self.dense(x.flatten(1))


class Transformer(nn.Module):
    """One block with attention, and logits by the embedding's own weight."""

    def __init__(self, vocabulary=32, width=16, heads=4, length=8, dropout=0.0):
        super().__init__()
        self.heads, self.width = heads, width
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", flow.tril(flow.ones(length, length)))

    def attention(self, x):
        rows, length, _ = x.shape
        each = self.width // self.heads
        qkv = self.qkv(x).reshape(rows, length, self.heads, 3 * each).permute(0, 2, 1, 3)
        q, k, v = flow.chunk(qkv, 3, dim=-1)
        scores = flow.matmul(q, k.transpose(-1, -2)) * each**-0.5
        scores = scores.masked_fill(self.mask == 0, -1e4)
        mixed = flow.matmul(self.dropout(flow.softmax(scores, dim=-1)), v)
        return self.proj(mixed.permute(0, 2, 1, 3).reshape(rows, length, self.width))

    def forward(self, ids):
        x = self.tokens(ids) + self.places(flow.arange(ids.shape[1]))
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return F.linear(x, self.tokens.weight)


class TwoTowers(nn.Module):
    """Several inputs, concatenation, a product of features, sigmoid loss: a small DLRM."""

    def __init__(self):
        super().__init__()
        self.items, self.users = nn.Embedding(24, 8), nn.Embedding(16, 8)
        self.bottom, self.top = nn.Linear(6, 8), nn.Linear(8 + 9, 1)

    def forward(self, dense, items, users):
        x = flow.relu(self.bottom(dense))
        features = flow.stack([x, self.items(items), self.users(users)], dim=1)
        pairs = flow.matmul(features, features.transpose(1, 2)).reshape(x.shape[0], 9)
        return self.top(flow.cat([x, pairs], dim=1)).squeeze(1)


def dense(depth=6, width=12):
    """Dense layers in a row, more than `Perceptron` has."""
    sizes = [8, *(width,) * (depth - 1), 8]
    layers = [(nn.Linear(a, b), nn.GELU()) for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*(module for pair in layers for module in pair))


class HalfTied(nn.Module):
    """Its first layer's weight is the last one's, too, without a gradient there, or anywhere."""

    def __init__(self, frozen=False):
        super().__init__()
        self.layers = dense(6, 8)
        self.layers[0].weight.requires_grad_(not frozen)

    def forward(self, x):
        return F.linear(self.layers(x), self.layers[0].weight.detach())


def classes(out, target):
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1))


def mean_square(out, target):
    return ((out - target) ** 2).mean()


def logits(out, target):
    return nn.BCEWithLogitsLoss()(out, target)


class Ladder(nn.Module):
    """Down and up again, each step added to the one of its width on the way down: long skips."""

    def __init__(self, width=16, depth=3):
        super().__init__()
        sizes = [8, *(width >> n for n in range(depth))]
        self.down = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)])
        back = [sizes[-1], *reversed(sizes[1:])]
        self.up = nn.ModuleList([nn.Linear(a, b) for a, b in zip(back, back[1:], strict=False)])
        self.last = nn.Linear(width, 8)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = F.relu(layer(x))
            kept.append(x)
        for layer in self.up:
            x = F.relu(layer(x)) + kept.pop()
        return self.last(x)


class Stack(nn.Module):
    """Equal residual blocks with a norm and dropout."""

    def __init__(self, blocks=4, width=16, dropout=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(blocks)])
        self.up = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(blocks)])
        self.down = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(blocks)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.first(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + self.dropout(down(F.gelu(up(norm(x)))))
        return self.last(x)


class ConvStack(nn.Module):
    """Equal convolutions with BatchNorm, whose moving statistics change once a step."""

    def __init__(self, blocks=3):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(blocks)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(blocks)])
        self.dense = nn.Linear(4 * 8 * 8, 8)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.dense(x.flatten(1))


class Weighing(nn.Module):
    """Finds the weights of its loss by itself, in its first layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        weights = (x > 0).to(flow.float32) * 2
        return self.third(F.relu(self.second(F.relu(self.first(x))))), weights


def weighed(out, target):
    out, weights = out
    return ((out - target) ** 2 * weights).sum() / weights.sum()


def floats(rng, *shape):
    return flow.tensor(rng.standard_normal(shape).astype(np.float32))


def whole(rng, n, *shape):
    return flow.tensor(rng.integers(0, n, shape).astype(np.int64))


def rows(rng, n):
    return floats(rng, n, 8), floats(rng, n, 8)


def labelled(rng, n):
    return floats(rng, n, 8), whole(rng, 8, n)


def words(rng, n):
    return whole(rng, 32, n, 8), whole(rng, 32, n, 8)


def images(rng, n):
    return floats(rng, n, 4, 8, 8), whole(rng, 8, n)


def clicks(rng, n):
    items, users = whole(rng, 24, n), whole(rng, 16, n)
    return floats(rng, n, 6), items, users, whole(rng, 2, n).to(flow.float32)


# name -> (model, loss, (rng, rows) -> batch)
MODELS = {
    "perceptron": (Perceptron, mean_square, rows),
    "classifier": (lambda: Perceptron(64), classes, labelled),
    "dense": (dense, mean_square, rows),
    "half tied": (HalfTied, mean_square, rows),
    "frozen tied": (lambda: HalfTied(frozen=True), mean_square, rows),
    "wide": (lambda: dense(4, 32), mean_square, rows),
    "ladder": (Ladder, mean_square, rows),
    "convnet": (ConvNet, classes, images),
    "transformer": (Transformer, classes, words),
    "dropout": (lambda: Transformer(dropout=0.3), classes, words),
    "stack": (Stack, mean_square, rows),
    "dropped stack": (lambda: Stack(dropout=0.3), mean_square, rows),
    "conv stack": (ConvStack, classes, images),
    "weighing": (Weighing, weighed, rows),
    "towers": (TwoTowers, logits, clicks),
}
OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.05, momentum=0.9),
    "slow sgd": lambda p: flow.optim.SGD(p, lr=0.01, momentum=0.9),
    "whole gradient": lambda p: flow.optim.SGD(p, lr=1.0),
    "adam": lambda p: flow.optim.Adam(p, lr=1e-3),
}
