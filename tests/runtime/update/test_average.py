"""Averages on one device; `test_whole_state.py` compares those of all plans with one process."""

from dataclasses import replace

import numpy as np
import pytest

from autoddl.plans.figures import figures
from autoddl.plans.format import format_bytes
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.runtime.update.average import check_decay
from tests.runtime.test_trainer import sgd, trainer_of
from tests.runtime.training import arrays, build


def test_a_decay_lies_between_0_and_1():
    check_decay(None)
    check_decay(0.999)
    for wrong in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match="ema_decay must lie between 0 and 1"):
            check_decay(wrong)


def test_averages_that_the_plan_has_not_counted_are_told(caplog):
    model, loss, batch = build("perceptron")
    size = sum(4 * p.numel() for p in model.parameters())
    plan = trainer_of(model, loss, batch(0, 8), ema_decay=0.9).plan
    (told,) = caplog.messages
    assert f"take {format_bytes(size)} a device" in told and "ema=True" in told
    assert "too much" not in told
    caplog.clear()
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    tight = replace(plan.stage, memory_limit_bytes=max(figures(plan).needed_bytes) + size - 1)
    build_trainer(traced, replace(plan, stages=(tight,)), sgd, ema_decay=0.9)
    assert "together too much" in caplog.messages[0]
    caplog.clear()
    build_trainer(
        traced, replace(plan, stages=(replace(plan.stage, ema=True),)), sgd, ema_decay=0.9
    )
    assert not caplog.messages


def test_averages_are_left_alone_and_begin_at_what_is_loaded():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8), ema_decay=0.9)
    trainer.step(*batch(0, 8))
    with trainer.averaged():
        for call in (
            trainer.train_state,
            trainer.ema_state_dict,
            lambda: trainer.step(*batch(0, 8)),
        ):
            with pytest.raises(ValueError, match=r"inside `with trainer.averaged\(\)`"):
                call()
    state = trainer.train_state()
    assert state is not None and state["ema"].keys() == model.state_dict().keys()
    weight = "first.weight"
    assert not np.array_equal(state["ema"][weight], state["model"][weight])
    trainer.load_state_dict(state["model"])
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), state["model"][weight])
    trainer.load_train_state(state)
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), state["ema"][weight])
    np.testing.assert_array_equal(arrays(trainer)[weight], state["model"][weight])
    trainer.load_train_state({**state, "ema": None})
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), state["model"][weight])
    without = trainer_of(model, loss, batch(0, 8))
    with pytest.raises(ValueError, match="give parallelize an ema_decay, or drop them with"):
        without.load_train_state(state)
    with pytest.raises(ValueError, match="no averages are kept; give parallelize an ema_decay"):
        without.ema_state_dict()
    with pytest.raises(ValueError, match="averages are those of other parameters"):
        trainer.load_train_state({**state, "ema": {}})
