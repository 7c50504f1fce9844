"""Small models, each with one thing that a tracer can get wrong."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

ROWS, WIDTH, CLASSES = 4, 8, 5


def rows(batch=ROWS, width=WIDTH):
    return flow.tensor(np.random.default_rng(0).standard_normal((batch, width)).astype(np.float32))


def labels(batch=ROWS):
    return flow.tensor(np.arange(batch) % CLASSES)


def example(batch=ROWS):
    return rows(batch), labels(batch)


class Mlp(nn.Module):
    """Two layers around a GELU."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.act = nn.GELU()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class InPlace(nn.Module):
    """Old and new values of tensors that change in place are both read."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        hidden = self.first(x)
        before = hidden * 1.5
        hidden += x
        hidden *= 2
        hidden -= before
        return self.last(self.act(hidden)) + self.last(before)


class Tied(nn.Module):
    """One weight under two names, and a module used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.first.weight
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.last(self.again(flow.relu(self.first(self.first(x)))))


class Norms(nn.Module):
    """BatchNorm with its counter, LayerNorm, dropout of rate 0, a mean and a batch-sized source."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.layer_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.0)
        self.last = nn.Linear(WIDTH, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = self.dropout(self.layer_norm(self.batch_norm(self.first(x - x.mean()))))
        return self.last(x) + flow.ones(x.shape[0], CLASSES) * flow.arange(CLASSES)


class Captured(nn.Module):
    """Tensors from outside the module's state: an attribute, a list, and one made on the way."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)
        self.shift = flow.ones(WIDTH) * 3
        self.weights = [self.last.weight]

    def forward(self, x):
        made = flow.tensor(np.arange(WIDTH, dtype=np.float32))
        return self.last(x * self.shift + made) + flow.matmul(x, self.weights[0].t())


class Stopped(nn.Module):
    """Gradients stop at a detach and in a no_grad block."""

    def __init__(self):
        super().__init__()
        self.body = Mlp()
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x):
        y = self.body(x)
        with flow.no_grad():
            frozen = self.head(y)
        return y * self.head(y.detach()) + frozen


class NeedlesslyStopped(nn.Module):
    """Detach and no_grad where no gradient would flow anyway."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        with flow.no_grad():
            mask = (x > 0).float()
        return self.last(x.detach() * mask)


class Averaging(nn.Module):
    """A buffer that moves with the data, in place and by assignment."""

    def __init__(self):
        super().__init__()
        self.body = Mlp()
        self.track = _Track()

    def forward(self, x):
        return self.track(self.body(x))


class _Track(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", flow.zeros(CLASSES))
        self.register_buffer("seen", flow.zeros(1))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.detach().mean(dim=0) * 0.1)
        self.seen = self.seen + 1
        return x - self.average


class Structured(nn.Module):
    """Takes and returns nested structures; `call` gives it positional and keyword arguments."""

    def __init__(self):
        super().__init__()
        self.inner = _Pair()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        (a, b), factor = self.inner([x, x * 2], scale=3, extra={"t": x})
        (c, _), _ = self.inner([a, b], scale=2)
        return {"logits": self.last(c + b * factor), "sum": (a + b).sum()}


class _Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale_by", flow.ones(WIDTH) * 0.5)

    def forward(self, pair, scale=1, extra=None):
        first = F.gelu(self.linear(pair[0])) * self.scale_by
        second = pair[1] * scale
        if extra is not None:
            second = second + extra["t"]
        return [first, second], 0.5


class Leaking(nn.Module):
    """Reads a tensor that a submodule kept instead of returning it."""

    def __init__(self):
        super().__init__()
        self.around = _Around()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.around(self.first(x))


class _Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.keeper = _Keeper()
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.last(self.keeper(x) + self.keeper.kept)


class _Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.kept = None

    def forward(self, x):
        self.kept = self.linear(x)
        return F.gelu(self.kept)
