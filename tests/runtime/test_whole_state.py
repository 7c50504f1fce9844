"""Training goes on from its state as if it had never stopped, also on another mesh."""

import json

import numpy as np
import pytest

from tests.runtime.test_trainer import trainer_of
from tests.runtime.training import build

flow = pytest.importorskip("oneflow", reason="needs OneFlow")


def adam(parameters):
    return flow.optim.Adam(parameters, lr=1e-3)


def test_training_goes_on_by_other_plans(launch):
    """AdamW with a schedule and groups, from 2x2 to 1x4 and in stages; dropout by the same plan.

    With averaged parameters, also of a tied weight.
    """
    ema, staged = {"ema": 0.7}, {"stages": 2, "micro_batches": 4}
    two, tied = {"optimizer": "groups", "steps": 2, **ema}, {"clip": 0.3, **ema, **staged}
    one_axis = {"nodes": 1, "gpus": 4, "seed": 4}
    cases = [
        {"model": "perceptron", "seed": 0, **two, "then": [one_axis, {**staged, "seed": None}]},
        {"model": "transformer", **tied, "optimizer": "sgd", "then": [one_axis]},
        {"model": "dense", "zero": "mixed", **two, "then": [{}], "uninterrupted": True},
        {"model": "perceptron", **staged, **two, "frozen": ["first", "second"], "then": [{}]},
        {"model": "dropout", "seed": 3, **two, "then": [{}], "uninterrupted": True, "alone": False},
    ]
    out = launch("loop", 4, json.dumps(cases))
    assert out.count("equal: ") == len(cases), out


def test_a_state_is_plain_arrays_and_goes_through_a_file(tmp_path):
    model, loss, batch = build("convnet")
    trainer = trainer_of(model, loss, batch(0, 8), optimizer=adam)
    trainer.step(*batch(0, 8))
    state = trainer.train_state()
    assert state is not None
    assert state["model"].keys() == model.state_dict().keys()
    assert state["optimizer"]["kept"]["conv1.weight"].keys() == {"exp_avg", "exp_avg_sq"}
    assert state["optimizer"]["steps"] == state["steps"] == 1
    flow.save(state, tmp_path / "state")
    trainer.step(*batch(1, 8))
    expected = trainer.state_dict()
    model, loss, batch = build("convnet")
    again = trainer_of(model, loss, batch(0, 8), optimizer=adam)
    again.load_train_state(flow.load(tmp_path / "state"))
    again.step(*batch(1, 8))
    for key, value in again.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), expected[key].numpy(), err_msg=key)


def test_a_state_that_does_not_fit_is_refused():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8), optimizer=adam)
    trainer.step(*batch(0, 8))
    state = trainer.train_state()
    assert state is not None
    with pytest.raises(ValueError, match="takes what train_state has given"):
        trainer.load_train_state(trainer.state_dict())
    with pytest.raises(ValueError, match="does not fit the model: missing.*first.bias"):
        trainer.load_train_state({**state, "model": {}})
    kept = {"first.bias": {"exp_avg": np.zeros(3)}}
    with pytest.raises(ValueError, match=r"exp_avg of first.bias: expected shape \(16,\)"):
        trainer.load_train_state({**state, "optimizer": {**state["optimizer"], "kept": kept}})
    model, loss, batch = build("perceptron")
    with pytest.raises(ValueError, match="the state is that of Adam, the optimizer is SGD"):
        trainer_of(model, loss, batch(0, 8)).load_train_state(state)
