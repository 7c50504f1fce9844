"""The trainer on one device: its inputs, outputs, state and options."""

import time
import warnings

import numpy as np
import pytest

from autoddl import api
from autoddl.graph.hints import batchwise
from autoddl.planner.planner import find_plan
from autoddl.runtime.traced import OpaqueWarning
from tests.framework import build_trainer, flow, trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import floats, mean_square
from tests.runtime.training import build

nn = flow.nn
RNG = np.random.default_rng(5)


def sgd(parameters):
    return flow.optim.SGD(parameters, lr=0.1)


def trainer_of(model, loss, batch, *, micro_batches=1, seed=0, optimizer=sgd, **options):
    traced = trace_with_state(model, *batch, loss=loss)
    plan = random_plan(traced.graph, cluster_of(1, 1), seed, micro_batches=micro_batches)
    return build_trainer(traced, plan, optimizer, **options)


@pytest.fixture(scope="module")
def perceptron():
    model, loss, batch = build("perceptron")
    return trainer_of(model, loss, batch(0, 8)), batch


def test_planning_that_lasts_gives_a_sign_of_life(monkeypatch, caplog):
    def last(*given):
        until = time.monotonic() + 5
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.005)
        return find_plan(*given)

    monkeypatch.setattr(api, "_FIRST_S", 0.01)
    monkeypatch.setattr(api, "find_plan", last)
    x = flow.randn(8, 4)
    where = cluster_of(1, 1)
    api.parallelize(nn.Linear(4, 2), where, example=(x, x[:, :2]), loss=mean_square, optimizer=sgd)
    assert caplog.messages[0].startswith("tracing and planning Linear: 0 s")


def test_wrong_inputs_are_named(perceptron):
    trainer, batch = perceptron
    x, y = batch(0, 8)
    with pytest.raises(ValueError, match="step takes 2 tensors.*got 1"):
        trainer.step(x)
    with pytest.raises(ValueError, match=r"argument 1: expected shape \(8, 8\), got \(6, 8\)"):
        trainer.step(x, y[:6])
    with pytest.raises(ValueError, match="argument 1: expected dtype float32.*got float64"):
        trainer.step(x, y.to(flow.float64))
    with pytest.raises(ValueError, match="argument 0: expected a tensor, got ndarray"):
        trainer.step(x.numpy(), y)
    with pytest.raises(ValueError, match="eval_step takes the model's 1 inputs, got 2"):
        trainer.eval_step(x, y)
    with pytest.raises(ValueError, match="optimizer must be a function"):
        build_trainer(trainer._traced, trainer.plan, lambda p: None)


def test_an_optimizer_of_the_models_own_parameters_is_refused():
    model, loss, batch = build("perceptron")
    with pytest.raises(ValueError, match="not handed to it, such as the model's own"):
        trainer_of(model, loss, batch(0, 8), optimizer=lambda _: sgd(model.parameters()))


def broken(batch, number=float("nan")):
    """A batch of which one number is none."""
    x, y = batch(0, 8)
    x[0, 0] = number
    return x, y


def test_numbers_that_are_none_end_training_with_the_next_call():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8))
    trainer.step(*batch(0, 8))
    trainer.step(*broken(batch))
    with pytest.raises(FloatingPointError, match="step 2: the loss and a gradient is infinite"):
        trainer.state_dict()


def test_debug_mode_names_the_first_operator_that_makes_no_number():
    class Log(nn.Module):
        def forward(self, x):
            return flow.log(x - 100.0)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Log())
    x = floats(RNG, 8, 4)
    trainer = trainer_of(model, mean_square, (x, x), debug=True)
    with pytest.raises(FloatingPointError, match=r"step 1.*first on this rank: .*log.*, output 0"):
        trainer.step(x, x)


def test_a_step_of_numbers_that_are_none_is_skipped():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8), on_nonfinite="skip")
    trainer.step(*batch(0, 8))
    before = {name: x.numpy() for name, x in trainer.state_dict().items()}
    trainer.step(*broken(batch, float("inf")))
    assert trainer.skipped == 1
    for name, x in trainer.state_dict().items():
        np.testing.assert_array_equal(x.numpy(), before[name])
    trainer.step(*batch(0, 8))
    assert trainer.skipped == 1


def test_loss_is_a_number_and_rows_are_all(perceptron):
    trainer, batch = perceptron
    assert isinstance(float(trainer.step(*batch(0, 8))), float)
    assert trainer.rows == slice(0, 8)
    assert trainer.graph is trainer.plan.graph


def test_views_of_larger_tensors_are_read_where_they_begin(perceptron):
    trainer, batch = perceptron
    x, _ = batch(0, 24)
    np.testing.assert_allclose(
        trainer.eval_step(x[8:16]).numpy(), trainer.eval_step(x[8:16].clone()).numpy()
    )


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("rows", [2, 5, 8, 16])
def test_evaluation_takes_any_batch(micro_batches, rows):
    model, loss, batch = build("transformer")
    trainer = trainer_of(model, loss, batch(0, 8), micro_batches=micro_batches)
    (ids, _) = batch(1, rows)
    model.eval()
    expected = model(ids).numpy()
    np.testing.assert_allclose(trainer.eval_step(ids).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_state_goes_to_the_model_and_back():
    model, loss, batch = build("convnet")
    trainer = trainer_of(model, loss, batch(0, 8))
    before = trainer.state_dict()
    assert before.keys() == model.state_dict().keys()
    trainer.step(*batch(0, 8))
    after = trainer.state_dict()
    assert int(after["bn1.num_batches_tracked"]) == 1
    assert int(model.bn1.num_batches_tracked) == 0  # the user's model is left alone
    fresh, *_ = build("convnet")
    fresh.load_state_dict(after)
    fresh.eval()
    x, _ = batch(1, 8)
    np.testing.assert_allclose(trainer.eval_step(x).numpy(), fresh(x).numpy(), rtol=1e-4, atol=1e-5)
    trainer.load_state_dict(before)
    for key, value in trainer.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key].numpy(), err_msg=key)
    with pytest.raises(ValueError, match="missing.*conv1.weight"):
        trainer.load_state_dict({k: v for k, v in before.items() if k != "conv1.weight"})
    with pytest.raises(ValueError, match="conv1.weight: expected shape"):
        trainer.load_state_dict({**before, "conv1.weight": flow.zeros(1)})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.second(flow.relu(self.first(x)))


def test_tied_and_unused_parameters():
    model = Tied()
    x, y = floats(RNG, 4, 8), floats(RNG, 4, 8)
    trainer = trainer_of(model, mean_square, (x, y))
    assert set(trainer.parameters()) == {"first.weight", "first.bias", "second.bias"}
    trainer.step(x, y)
    mean_square(model(x), y).backward()
    sgd(model.parameters()).step()
    state = trainer.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(state[key].numpy(), value.numpy(), rtol=1e-5, atol=1e-6)
    state["first.weight"] = state["second.weight"] = flow.zeros(8, 8)
    state["unused.bias"] = flow.ones(3)
    trainer.load_state_dict(state)
    assert not trainer.state_dict()["second.weight"].numpy().any()
    np.testing.assert_array_equal(model.unused.bias.numpy(), np.ones(3))


def test_frozen_parameters_stay():
    model, loss, batch = build("perceptron")
    model.second.weight.requires_grad_(False)
    trainer = trainer_of(model, loss, batch(0, 8))
    before = trainer.state_dict()
    trainer.step(*batch(0, 8))
    after = trainer.state_dict()
    changed = {k for k in before if np.any(before[k].numpy() != after[k].numpy())}
    assert changed == set(before) - {"second.weight"}


def test_schedulers_drive_the_optimizer():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8))
    scheduler = flow.optim.lr_scheduler.LambdaLR(
        trainer.optimizer, lr_lambda=lambda step: 0.0 if step else 1.0
    )
    trainer.step(*batch(0, 8))
    scheduler.step()
    before = trainer.state_dict()
    trainer.step(*batch(1, 8))
    for key, value in trainer.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key].numpy())


def test_dropout_follows_the_seed():
    model, loss, batch = build("dropout")

    def losses(seed):
        trainer = trainer_of(model, loss, batch(0, 8), seed=seed)
        first = trainer.eval_step(batch(0, 8)[0]).numpy()
        found = [float(trainer.step(*batch(0, 8))) for _ in range(3)]
        np.testing.assert_array_equal(trainer_of(model, loss, batch(0, 8)).eval_step(
            batch(0, 8)[0]).numpy(), first)  # fmt: skip
        return found

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


class Viewed(nn.Module):
    """An operator that autoddl has no rule for, and a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(flow.ones(4))

    def forward(self, x):
        return flow.as_strided(x.reshape(-1, 2, 4) * self.weight, tuple(x.shape), (8, 1))


class Strange(nn.Module):
    """Holds such an operator, and dropout."""

    def __init__(self):
        super().__init__()
        self.back = Viewed()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.back(x))


class WithOpaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.strange = nn.Linear(8, 8), Strange()

    def forward(self, x):
        return self.dense(self.strange(self.dense(x)))


def test_opaque_submodules_run_as_they_are():
    model = WithOpaque()
    x, y = floats(RNG, 4, 8), floats(RNG, 4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OpaqueWarning)
        trainer = trainer_of(model, mean_square, (x, y))
    assert [op.kind for op in trainer.graph.ops].count("opaque") == 1
    before = flow.default_generator.get_state().numpy()
    first = float(trainer.step(x, y))
    np.testing.assert_array_equal(flow.default_generator.get_state().numpy(), before)
    assert trainer.parameters()["strange.back.weight"].grad is not None
    assert float(trainer.step(x, y)) != first
    out = trainer.eval_step(x)
    assert model.strange.dropout.training
    model.load_state_dict(trainer.state_dict())
    model.eval()
    np.testing.assert_allclose(out.numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


class Curved(nn.Module):
    def __init__(self, curve):
        super().__init__()
        self.back, self.curve = nn.Linear(8, 8), curve

    def forward(self, x):
        return self.curve(self.back(x))


def test_unlike_opaque_submodules_of_one_shape_are_not_taken_for_each_other():
    model = nn.Sequential(nn.Linear(8, 8), Curved(flow.sin), Curved(flow.exp), Curved(flow.sin))
    for part in list(model)[1:]:
        batchwise(part)
    batch = floats(RNG, 4, 8), floats(RNG, 4, 8)
    trainer = trainer_of(model, mean_square, batch)
    graph = trainer.graph
    names = [op.name for op in graph.ops if op.kind == "opaque"]
    assert len({graph.alike[name] for name in names}) == 1 < len(names), "planned alike"
    losses = [float(trainer.step(*batch)) for _ in range(3)]
    expected, optimizer = [], sgd(model.parameters())
    for _ in range(3):
        loss = mean_square(model(batch[0]), batch[1])
        expected.append(float(loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


class Many(nn.Module):
    """Results in a structure, and an input that is not a batch."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 8)

    def forward(self, x, scale):
        y = self.dense(x)
        return {"scaled": y * scale, "parts": (y, [y.sum(dim=1)])}


def test_results_keep_their_structure():
    model = Many()
    x, scale, y = floats(RNG, 4, 8), floats(RNG, 8), floats(RNG, 4, 8)
    trainer = trainer_of(model, lambda out, t: mean_square(out["scaled"], t), (x, scale, y))
    got, expected = trainer.eval_step(x, scale), model(x, scale)
    np.testing.assert_allclose(got["scaled"].numpy(), expected["scaled"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(got["parts"][0].numpy(), expected["parts"][0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        got["parts"][1][0].numpy(), expected["parts"][1][0].numpy(), rtol=1e-4, atol=1e-5
    )
    trainer.step(x, scale, y)
