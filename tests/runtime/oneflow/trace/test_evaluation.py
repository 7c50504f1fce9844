"""Models that draw numbers: planned operator by operator, and in evaluation what the model says."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

from autoddl import batchwise
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from tests.runtime.oneflow.trace import toys
from tests.runtime.test_trainer import trainer_of

DRAWS = {"uniform", "normal", "bernoulli", "uniform_int", "exponential", "randperm"}


class Dropped(nn.Module):
    """Stochastic depth, with dropout on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)
        self.norm, self.dropout, self.path = nn.BatchNorm1d(8), nn.Dropout(0.5), Path()

    def forward(self, x):
        x = x + self.path(self.dropout(F.relu(self.norm(self.first(x)))))
        return self.last(self.dropout(x))


class Path(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * flow.floor(flow.rand(x.shape[0], 1) + 0.5) / 0.5


class Sampling(nn.Module):
    """A variational autoencoder: a code is drawn, in evaluation it is the mean."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.last = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 5)

    def forward(self, x):
        code, spread = self.mean(x), self.spread(x)
        if self.training:
            code = code + flow.randn_like(code) * flow.exp(0.5 * spread)
        else:
            code = code * 2 + flow.tensor([0.5, 0.0, 0.0, 1.0])
        return self.last(code)


class Aside(nn.Module):
    """Adds noise to its input, and in evaluation gives another head's result."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x):
        noisy = x + flow.bernoulli(flow.ones(*x.shape) * 0.5)
        return self.first(noisy) if self.training else self.last(x)


class Tripled(nn.Linear):
    """Draws nothing, and gives another result in evaluation."""

    def __init__(self):
        super().__init__(8, 5)

    def forward(self, x):
        return super().forward(x) * (1.0 if self.training else 3.0)


@pytest.mark.parametrize("make", [Dropped, Sampling, Aside, Tripled])
@pytest.mark.filterwarnings("error::autoddl.runtime.traced.OpaqueWarning")
def test_evaluation_is_the_models_own(make):
    flow.manual_seed(0)
    model = make()
    trainer = trainer_of(model, F.cross_entropy, toys.example(8))
    graph = trainer.graph
    kinds = {op.kind for op in graph.ops}
    assert bool(kinds & DRAWS) == (make is not Tripled)
    assert "by_mode" in kinds and "opaque" not in kinds
    first = float(trainer.step(*toys.example(8)))
    assert float(trainer.step(*toys.example(8))) != first
    same = make()
    same.load_state_dict(trainer.state_dict())
    same.eval()
    found = trainer.eval_step(toys.rows(8)).numpy()
    np.testing.assert_allclose(found, same(toys.rows(8)).numpy(), rtol=1e-5, atol=1e-6)
    expected = float(F.cross_entropy(same(toys.rows(8)), toys.labels(8)))
    assert trainer.evaluate([toys.example(8)])["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("make", [Dropped, Sampling, Aside, Tripled])
def test_graphs_of_both_modes_follow_the_batch(make):
    model = make()
    graph = trace_with_state(model, *toys.example(), loss=F.cross_entropy).graph
    larger = trace_with_state(model, *toys.example(8), loss=F.cross_entropy).graph
    assert graph.with_batch(8).fingerprint == larger.fingerprint


def test_what_both_modes_have_stands_there_once():
    graph = trace_with_state(Dropped(), *toys.example(), loss=F.cross_entropy).graph
    kinds = [op.kind for op in graph.ops]
    assert kinds.count("by_mode") == 1 and kinds.count("matmul") == 2
    (choice,) = (op for op in graph.ops if op.kind == "by_mode")
    assert choice.inputs == ("path/scalar_div", "relu")


def test_a_constant_of_both_modes_is_one_buffer():
    class Scaled(Dropped):
        def forward(self, x):
            if not self.training:
                x = x + flow.tensor([0.5])
            return super().forward(x * flow.tensor([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]))

    buffers = trace_with_state(Scaled(), *toys.example(), loss=F.cross_entropy).buffers
    assert sorted(buffers[key].shape[0] for key in buffers if key.startswith("#")) == [1, 8]


class Pair(nn.Module):
    """Draws, and has a second result in training."""

    def __init__(self):
        super().__init__()
        self.path, self.last = Path(), nn.Linear(8, 5)

    def forward(self, x):
        y = self.last(self.path(x))
        return (y, y) if self.training else y


class Named(nn.Linear):
    """Other results in evaluation, of another shape, too."""

    def __init__(self):
        super().__init__(8, 5)

    def forward(self, x):
        y = super().forward(x)
        return {"train": y} if self.training else [{"result": y * 2}, y.argmax(-1)]


class Tokens(nn.Linear):
    """Drops columns in training."""

    def __init__(self):
        super().__init__(4, 5)

    def forward(self, x):
        x = F.relu(x.reshape(-1, 4, 2) * 2)
        x = x[:, :, :1] if self.training else x
        return super().forward(x.mean(-1))


class Running(nn.Module):
    """Runs as it is, by a number, and in evaluation gives more columns."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 8)

    def forward(self, x, number):
        y = self.last(x) * number
        return y[:, :5] if self.training else y


class Numbered(nn.Module):
    def __init__(self):
        super().__init__()
        self.running = batchwise(Running())

    def forward(self, x):
        return self.running(x, 1.0 if self.training else 3.0)[:, :5]


class Unknown(nn.Linear):
    """In evaluation a module runs as it is."""

    def __init__(self):
        super().__init__(8, 5)
        self.products = Products()

    def forward(self, x):
        y = super().forward(x)
        return y if self.training else self.products(y)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(flow.cumprod(x, dim=1))


@pytest.mark.parametrize("make", [Tokens, Numbered, Unknown])
@pytest.mark.filterwarnings("ignore:products runs as one")
def test_what_one_mode_has_in_another_shape_or_runs_as_it_is(make):
    flow.manual_seed(0)
    trainer = trainer_of(make(), F.cross_entropy, toys.example(8))
    trainer.step(*toys.example(8))
    same = make()
    same.load_state_dict(trainer.state_dict())
    expected = same.eval()(toys.rows(8))
    found = trainer.eval_step(toys.rows(8)).numpy()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    score = float(F.cross_entropy(expected, toys.labels(8)))
    assert trainer.evaluate([toys.example(8)])["loss"] == pytest.approx(score, rel=1e-5)


class Counted(nn.Linear):
    """Gives numbers, of which one follows the batch."""

    def __init__(self):
        super().__init__(8, 5)

    def forward(self, x):
        y = super().forward(x)
        return y if self.training else {"y": y, "rows": len(x) * 3, "columns": y.shape[1]}


def test_numbers_among_the_results_follow_the_batch():
    trainer = trainer_of(Counted(), loss_of_rows, toys.example(8))
    trainer.step(*toys.example(8))
    for rows in (8, 16):
        found = trainer.eval_step(toys.rows(rows))
        assert (found["rows"], found["columns"]) == (3 * rows, 5)
    metrics = {"rows": lambda out, target: out["rows"]}
    assert trainer.evaluate([toys.example(8), toys.example(4)], metrics)["rows"] == 20.0


def loss_of_rows(out, y):
    return F.cross_entropy(out["y"] if isinstance(out, dict) else out, y)


def test_what_runs_as_it_is_gets_no_number_that_follows_the_batch():
    class Sized(Numbered):
        def forward(self, x):
            return self.running(x, float(x.shape[0]))[:, :5]

    with pytest.raises(ValueError, match="running gets a number that follows the batch"):
        trace_with_state(Sized(), *toys.example(8), loss=F.cross_entropy)


class Moved(Unknown):
    """Whose statistics training moves."""

    def forward(self, x):
        y = super().forward(x)
        return self.products.norm(y) if self.training else y


@pytest.mark.filterwarnings("ignore:products runs as one")
def test_a_module_as_it_is_in_evaluation_alone_has_no_buffers_of_training():
    trainer = trainer_of(Moved(), F.cross_entropy, toys.example(8))
    with pytest.raises(
        ValueError, match="products runs as it is in evaluation alone, and has norm"
    ):
        trainer.eval_step(toys.rows(8))


def first_of(output):
    if isinstance(output, list):
        return output[0]["result"]
    if isinstance(output, dict):
        return output["train"]
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("make", [Pair, Named])
@pytest.mark.filterwarnings("error::autoddl.runtime.traced.OpaqueWarning")
def test_results_have_a_structure_of_their_own_in_evaluation(make):
    flow.manual_seed(0)
    trainer = trainer_of(make(), lambda out, y: F.cross_entropy(first_of(out), y), toys.example(8))
    trainer.step(*toys.example(8))
    same = make()
    same.load_state_dict(trainer.state_dict())
    found, expected = trainer.eval_step(toys.rows(8)), same.eval()(toys.rows(8))
    assert type(found) is type(expected)
    np.testing.assert_allclose(
        first_of(found).numpy(), first_of(expected).numpy(), rtol=1e-5, atol=1e-6
    )
    if make is Named:
        assert np.array_equal(found[1].numpy(), expected[1].numpy())
    score = float(F.cross_entropy(first_of(expected), toys.labels(8)))
    assert trainer.evaluate([toys.example(8)])["loss"] == pytest.approx(score, rel=1e-5)


def test_without_a_loss_of_evaluations_results_metrics_are_given_alone():
    trainer = trainer_of(Named(), lambda out, y: F.cross_entropy(out["train"], y), toys.example(8))
    trainer.step(*toys.example(8))
    assert [*trainer.eval_step(toys.rows(8))[0]] == ["result"]
    with pytest.raises(
        ValueError, match="no loss of what the model gives in evaluation .* indices"
    ):
        trainer.evaluate([toys.example(8)])
    metrics = {"rows": lambda out, target: out[1] >= 0}
    with pytest.warns(UserWarning, match="metrics alone"):
        assert trainer.evaluate([toys.example(8)], metrics) == {"rows": 1.0}
