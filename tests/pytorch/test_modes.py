"""What a model does with `self.training` is done in evaluation too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autoddl
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace import trace as tracing
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan

FULL = pytest.mark.full
ALONE = cluster_of(1, 1)


class Path(nn.Module):
    """Stochastic depth, as people write it."""

    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty(x.shape[0], 1).bernoulli_(0.8) / 0.8


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.path, self.dropout = Path(), nn.Dropout(0.5)

    def forward(self, x):
        x = x + self.path(self.dropout(F.relu(self.norm(self.first(x)))))
        return self.last(self.dropout(x))


class Other(Dropped):
    """Another head, a table of its own, and no noise."""

    def forward(self, x):
        y = self.first(x)
        if self.training:
            return self.last(y + torch.randn_like(y) + torch.arange(6.0))
        return self.first(self.norm(y) * torch.arange(1.0, 7.0))


class Attends(Dropped):
    """Attention that drops weights, as transformers ask for it."""

    def forward(self, x):
        y = self.first(x).reshape(-1, 1, 2, 3)
        rate = 0.3 if self.training else 0.0
        return self.last(F.scaled_dot_product_attention(y, y, y, dropout_p=rate).flatten(1))


class Sides(Dropped):
    """With a second result in training."""

    def forward(self, x):
        y = self.last(x)
        return (y, self.first(x)) if self.training else y


class Masks(nn.Module):
    """Reads its mode, by which it does nothing else: attention is told to drop nothing."""

    def __init__(self, rate):
        super().__init__()
        self.first, self.last, self.rate = nn.Linear(6, 6), nn.Linear(6, 6), rate

    def forward(self, x):
        y = self.first(x).reshape(-1, 1, 2, 3)
        rate = self.rate if self.training else 0.0
        found = F.scaled_dot_product_attention(y, y, y, dropout_p=rate).flatten(1)
        parts = [*found.split(3, 1)]
        return self.last(F.dropout(torch.cat(parts[::-1], 1), 0.2, self.training))


class Turned(Masks):
    """The list that torch has given is turned round in training."""

    def forward(self, x):
        parts = torch.ops.aten.split(self.first(x), 3, 1)
        if self.training:
            parts.reverse()
        return self.last(torch.cat(parts, 1))


class Scales(Masks):
    """Another number in evaluation, by layer."""

    def forward(self, x):
        return self.last(self.first(x) * (self.rate if self.training else 2 * self.rate))


class Tokens(Dropped):
    """Drops columns in training."""

    def forward(self, x):
        x = F.relu(x.reshape(-1, 3, 2) * 2)
        x = x[..., :1] if self.training else x
        return self.last(x.mean(-1).repeat(1, 2))


class Running(nn.Module):
    """Runs as it is, by a number."""

    def __init__(self):
        super().__init__()
        self.last, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x, number):
        return self.norm(self.last(x)) * number


class Numbered(Dropped):
    """What runs as it is gets another number in evaluation, and is called once more."""

    def __init__(self):
        super().__init__()
        self.running = autoddl.opaque(Running())

    def forward(self, x):
        y = self.running(self.first(x), 1.0 if self.training else 3.0)
        return self.last(y if self.training else self.running(y, 1.0))


def loss(result, target):
    results = result if isinstance(result, tuple) else (result,)
    return sum((F.mse_loss(y, target) for y in results), torch.zeros(()))


def trained(model, x, loss=loss):
    traced = trace_with_state(model, x, x, loss=loss)
    plan = random_plan(traced.graph, ALONE, 0)
    trainer = build_trainer(traced, plan, lambda p: torch.optim.SGD(p, lr=0.1))
    trainer.step(x, x)
    return traced.graph, trainer


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        (Dropped, 1),
        (Numbered, 1),
        pytest.param(Other, 1, marks=FULL),
        pytest.param(Attends, 0, marks=FULL),
        pytest.param(Tokens, 1, marks=FULL),
    ],
)
def test_evaluation_is_the_models_own(kind, choices):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 6)
    graph, trainer = trained(model, x)
    assert [op.kind for op in graph.ops].count("by_mode") == choices and graph.batch == 4
    model.load_state_dict(trainer.state_dict())
    expected = model.eval()(x)
    assert torch.allclose(trainer.eval_step(x), expected, atol=1e-6)
    found = trainer.evaluate([(x, x)])["loss"]
    assert found == pytest.approx(float(F.mse_loss(expected, x).detach()), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "rate", "exports"),
    [(Masks, 0.0, 1), (Masks, 0.3, 1), (Scales, 0.3, 2), pytest.param(Turned, 0.0, 2, marks=FULL)],
)
def test_only_what_another_mode_asks_for_is_recorded_again(kind, rate, exports, monkeypatch):
    own, calls = tracing.export, []
    monkeypatch.setattr(tracing, "export", lambda *a: (calls.append(a), own(*a))[1])
    torch.manual_seed(0)
    model, x = kind(rate), torch.randn(4, 6)
    _, trainer = trained(model, x)
    assert len(calls) == exports
    model.load_state_dict(trainer.state_dict())
    assert torch.allclose(trainer.eval_step(x), model.eval()(x), atol=1e-6)


class Taken(Dropped):
    """Whose loss takes results of training alone."""

    def forward(self, x):
        y = self.last(x)
        return {"y": y, "aux": self.first(x)} if self.training else (y.argmax(-1), y)


@pytest.mark.parametrize("kind", [Sides, pytest.param(Taken, marks=FULL)])
def test_results_have_a_structure_of_their_own_in_evaluation(kind):
    torch.manual_seed(0)
    model, x = kind(), torch.randn(4, 6)
    graph, trainer = trained(model, x, loss if kind is Sides else sum_of)
    assert graph.batch == 4 and not any("argmax" in name for name in in_training(trainer))
    model.load_state_dict(trainer.state_dict())
    found, expected = trainer.eval_step(x), model.eval()(x)
    if kind is Sides:
        assert torch.allclose(found, expected, atol=1e-6)
        score = float(F.mse_loss(expected, x).detach())
        assert trainer.evaluate([(x, x)])["loss"] == pytest.approx(score, rel=1e-5)
        return
    assert torch.equal(found[0], expected[0]) and torch.allclose(found[1], expected[1], atol=1e-6)
    with pytest.raises(ValueError, match=r"no loss of what .*: TypeError: tuple indices"):
        trainer.evaluate([(x, x)])
    with pytest.warns(UserWarning, match="metrics alone") as told:
        found = trainer.evaluate([(x, x)], {"first": lambda out, target: out[0] == 0})
    assert found == {"first": float((expected[0] == 0).float().mean())}
    assert told[0].filename == __file__


class Counted(Dropped):
    """Gives numbers, of which one follows the batch."""

    def forward(self, x):
        y = self.last(x)
        return y if self.training else {"y": y, "rows": len(x) * 3, "columns": y.shape[1]}


def test_numbers_among_the_results_follow_the_batch():
    x = torch.randn(4, 6)
    graph, trainer = trained(Counted(), x, lambda out, y: F.mse_loss(y_of(out), y))
    assert graph.batch == 4
    for rows in (x, torch.cat([x, x])):
        found = trainer.eval_step(rows)
        assert (found["rows"], found["columns"]) == (3 * len(rows), 6)
        assert type(found["rows"]) is int
    found = trainer.evaluate([(x, x), (x[:2], x[:2])], {"rows": lambda out, y: out["rows"]})
    assert found["rows"] == 10.0


def y_of(out):
    return out["y"] if isinstance(out, dict) else out


def in_training(trainer):
    """The names of operators that a step runs."""
    (part,) = trainer._parts.values()
    return [node.op.name for node in part.executor._program.nodes]


def sum_of(results, target):
    return F.mse_loss(results["y"], target) + F.mse_loss(results["aux"], target)
