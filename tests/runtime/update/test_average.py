"""Averages on one device; `test_checkpoints.py` compares those of all plans with one process."""

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


def test_averages_are_left_alone_and_begin_at_what_is_loaded(tmp_path, caplog):
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8), ema_decay=0.9)
    trainer.step(*batch(0, 8))
    with trainer.averaged():
        for call in (
            lambda: trainer.save(tmp_path),
            trainer.ema_state_dict,
            lambda: trainer.step(*batch(0, 8)),
        ):
            with pytest.raises(ValueError, match=r"inside `with trainer.averaged\(\)`"):
                call()
    trainer.save(tmp_path)
    weight, own = "first.weight", arrays(trainer)
    averages = trainer.ema_state_dict()[weight].numpy()
    assert not np.array_equal(averages, own[weight])
    trainer.load_state_dict(trainer.state_dict())
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), own[weight])
    trainer.load(tmp_path)
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), averages)
    np.testing.assert_array_equal(arrays(trainer)[weight], own[weight])
    without = trainer_of(model, loss, batch(0, 8))
    without.load(tmp_path)
    assert "has averaged parameters; without ema_decay they are left out" in caplog.messages[-1]
    with pytest.raises(ValueError, match="no averages are kept; give parallelize an ema_decay"):
        without.ema_state_dict()
    without.step(*batch(1, 8))
    without.save(tmp_path)
    trainer.load(tmp_path)
    np.testing.assert_array_equal(trainer.ema_state_dict()[weight].numpy(), arrays(without)[weight])
