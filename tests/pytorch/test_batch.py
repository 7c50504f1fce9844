"""How what a model computes follows the batch: numbers, constants, and what is told of one size."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autoddl
from autoddl.graph.padding import find_padding
from autoddl.graph.rows import find_rows
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.pytorch.models import relative
from tests.runtime.random_plans import cluster_of, random_plan

ROWS, ALONE = 8, cluster_of(1, 1)
X = torch.linspace(-1, 1, ROWS * 6).view(ROWS, 6)
rows = torch.arange


class Layer(nn.Linear):
    """`change` of what a linear layer makes."""

    def __init__(self, change=lambda x: x):
        torch.manual_seed(0)
        super().__init__(6, 6)
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x).tanh())


def traced(change=lambda x: x, loss=F.mse_loss):
    return trace_with_state(Layer(change), X, X.flip(1), loss=loss)


def check_loss(found, parts, change=lambda x: x, loss=F.mse_loss):
    """The first step's is that of eager torch."""
    plan = random_plan(found.graph, ALONE, 0, micro_batches=parts)
    trainer = build_trainer(found, plan, lambda p: torch.optim.SGD(p, lr=0.1))
    y = X.flip(1)
    expected = loss(Layer(change)(X), y)
    assert relative(float(trainer.step(X, y)), float(expected)) < 1e-6
    return trainer


GROUPS = {
    "groups of four": lambda x: x + (rows(x.shape[0]) // 4)[:, None],
    "the first four": lambda x: x * (rows(x.shape[0]) < 4)[:, None],
    "four in turns": lambda x: x + x[rows(x.shape[0]) % 4],
    "no more than the fourth": lambda x: x + x[rows(x.shape[0]).clamp(max=3)],
    "rows before the last four": lambda x: torch.ones(x.shape[0], x.shape[0]).tril(-4) @ x,
    "their number": lambda x: x * (torch.tensor(x.shape[0]) // 4),
    "of a class": lambda x: x + F.one_hot(rows(x.shape[0]) // 5, 6),
}


@pytest.mark.parametrize("name", GROUPS)
def test_constants_that_are_otherwise_at_the_example_than_at_two_and_three_rows(name):
    found = traced(GROUPS[name])
    assert found.graph.batch == 0
    check_loss(found, 1, GROUPS[name])


@pytest.mark.parametrize(
    "share",
    [
        lambda n: n // 4,
        lambda n: (n + 7) // 8 * 8,
        lambda n: n % 3,
        lambda n: n - 1,
        lambda n: torch.ones(n).sum().clamp(min=4),
        lambda n: torch.ones(n, dtype=int).sum() // 2,
        lambda n: torch.ones(n).sum().clamp(max=5),
    ],
)
def test_a_number_that_is_not_proportional_to_the_batch(share):
    """At twice the rows the first two look as if they were."""
    assert traced(loss=lambda y, t: (y - t).square().sum() / share(y.shape[0])).graph.batch == 0


def test_numbers_that_are():
    def loss(y, t):
        return (y - t).square().sum() / len(y) + y.shape[0] * 0.01 * y.mean()

    found = traced(lambda x: x + torch.zeros(len(x), 6), loss)
    assert found.graph.batch == ROWS
    for parts in (1, 4):
        check_loss(found, parts, loss=loss)
    assert len(X) == ROWS and type(len(X)) is int  # Python's own again


MEANS = {
    "1 - mean": lambda y, t: 1 - F.cosine_similarity(y, t).mean(),
    "mean - 6": lambda y, t: torch.add(F.mse_loss(y, t), 2, alpha=-3),
    "sum + 3": lambda y, t: 3 + (y - t).square().sum(),
    "9 - 3 mean": lambda y, t: torch.rsub(F.mse_loss(y, t), 9, alpha=3),
    "weighted mean": lambda y, t: 1 - (y * t.abs()).sum() / t.abs().sum(),
}


# constants that grow with the batch, or fall, as much as it does
COUNTS = {
    "ones": lambda y, t: (y - t).square().sum() / torch.ones_like(t).sum(),
    "whole ones": lambda y, t: (y - t).square().sum() / torch.ones(len(t), dtype=int).sum(),
    "a size": lambda y, t: (y - t).square().sum() / torch.tensor(t.shape[0]),
    "an inverse": lambda y, t: (y - t).square().sum() * (3.0 / torch.ones_like(t).sum()),
    "a weight of each row": lambda y, t: (
        (torch.ones(len(t), 1) / len(t)).mul(2) * (y - t).square()
    ).sum(),
    "in each column": lambda y, t: (
        ((y - t) / (torch.ones_like(t) * torch.arange(1.0, 7.0)).sum(0)).square().sum()
    ),
    "added": lambda y, t: (y - t).square().mean() + 0.25 * torch.ones(len(t)).sum(),
}


@pytest.mark.parametrize("name", [*MEANS, *COUNTS])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_number_added_to_a_mean_over_the_batch_and_a_count_of_its_rows(name, parts):
    """A step of all rows, and one of six that are filled up."""
    loss, own = {**MEANS, **COUNTS}[name], Layer()
    trainer = check_loss(traced(loss=loss), parts, loss=loss)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    for rows in (ROWS, 6):
        x, y = X[:rows], X.flip(1)[:rows]
        expected = loss(own(x), y)
        if rows < ROWS:
            assert relative(float(trainer.step(x, y)), float(expected)) < 1e-6
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    for key, value in trainer.state_dict().items():
        assert torch.allclose(value, own.state_dict()[key], rtol=1e-5, atol=1e-6), key


@pytest.mark.parametrize("alpha", [1, 3])
def test_rsub_multiplies_what_it_takes_away(alpha):
    def change(x):
        return torch.rsub(x, x.square(), alpha=alpha) + torch.rsub(x, 2, alpha=alpha)

    check_loss(traced(change), 2, change)


def test_a_model_for_one_size_of_the_batch():
    found = traced(GROUPS["groups of four"])
    with pytest.raises(ValueError, match="for one size of the batch, and cannot .* 2 micro"):
        find_plan(found.graph, ALONE, PlanOptions(micro_batches=2))
    trainer = check_loss(found, 1, GROUPS["groups of four"])
    assert len(X[trainer.rows]) == ROWS
    with pytest.raises(ValueError, match="one size of the batch .of a DataLoader, drop_last"):
        trainer.step(X[:6], X[:6])


def test_batch_norm_without_moving_statistics_takes_those_of_the_batch_in_evaluation_too():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False))
    graph = autoddl.trace(model, X, X, loss=F.mse_loss)
    assert find_rows(graph, evaluates=True).meeting is not None
    with pytest.raises(ValueError, match="rows of the batch meet in 1/normalization"):
        find_padding(graph, evaluates=True)
    model[1] = nn.BatchNorm1d(6)
    find_padding(autoddl.trace(model, X, X, loss=F.mse_loss), evaluates=True)


class SetsAside(nn.Module):
    """Fills halves of what it has set aside, of more elements than memory has bytes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = x.new_empty(len(x), 1 << 20, 1 << 20, 8)
        y[..., :4] = self.inner(x)[:, None, None]
        y[..., 4:] = x[:, None, None]
        return y.sum((1, 2))


def test_what_a_model_sets_aside_takes_no_memory_when_it_is_traced():
    with torch.device("meta"):
        model = SetsAside()
    found = autoddl.trace(model, X[:, :4], torch.zeros(ROWS, 8), loss=F.mse_loss)
    assert found.batch == ROWS
    assert "slice_update" in {op.kind for op in found.ops}
