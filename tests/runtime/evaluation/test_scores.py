"""The loss and metrics of a data set are those of all its rows as one batch."""

import numpy as np
import pytest

from tests.exactness.losses import EXACT, WHOLE
from tests.runtime.test_trainer import trainer_of
from tests.runtime.training import build

flow = pytest.importorskip("oneflow", reason="needs OneFlow")
MEANS = sorted(EXACT.keys() - {"decayed"})  # a sum and a mean in one are no loss of a data set
SIZES = (8, 20, 3, 1)  # of batches; the plan's is 8


def joined(batches):
    return [flow.cat(list(parts), dim=0) for parts in zip(*batches, strict=True)]


@pytest.mark.parametrize(
    ("name", "micro_batches"),
    [*((name, 4) for name in (*MEANS, "classifier", "towers")), ("convnet", 1), ("masked", 1)],
)
def test_losses_of_data_sets(name, micro_batches):
    model, loss, batch = build(name)
    trainer = trainer_of(model, loss, batch(0, 8), micro_batches=micro_batches)
    model.eval()
    batches = [batch(n + 3, rows) for n, rows in enumerate(SIZES)]
    *inputs, target = joined(batches)
    output = model(*inputs)
    found = trainer.evaluate(
        batches,
        {
            "above": lambda out, target: out > 0,
            "squares": lambda out, target: ((out**2).sum(), (out * 0 + 1).sum()),
            "row": lambda out, target: float(out.numpy().reshape(len(out), -1)[:, 0].mean()),
            "target": lambda out, target: target.to(flow.float32),
        },
    )
    output, target = output.numpy(), target.numpy()
    expected = {
        "loss": float(loss(flow.tensor(output), flow.tensor(target))),
        "above": (output > 0).mean(),
        "squares": (output**2).mean(),
        "row": output.reshape(len(output), -1)[:, 0].mean(),
        "target": target.mean(),
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=2e-6), key
    assert trainer.steps == 0 and np.isfinite(float(trainer.step(*batch(0, 8))))


@pytest.mark.parametrize("name", WHOLE)
def test_rows_that_meet_are_evaluated_whole(name):
    model, loss, batch = build(name)
    trainer = trainer_of(model, loss, batch(0, 8))
    *inputs, target = batch(1, 6)
    expected = float(loss(model(*inputs), target))
    assert trainer.evaluate([batch(1, 6)])["loss"] == pytest.approx(expected, rel=1e-6)


def test_what_is_no_data_set_is_refused():
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8))
    with pytest.raises(ValueError, match="evaluate got no batch; a generator"):
        trainer.evaluate([])
    with pytest.raises(ValueError, match="evaluate takes 2 tensors.*got 1"):
        trainer.evaluate([batch(0, 8)[:1]])
    with pytest.raises(TypeError, match="evaluate takes batches"):
        trainer.evaluate(np.array(2))
    none = [x[:0] for x in batch(0, 8)]
    for call in (lambda: trainer.evaluate([none]), lambda: trainer.step(*none)):
        with pytest.raises(ValueError, match=r"a batch has rows, got none: shape \(0, "):
            call()
    with pytest.raises(ValueError, match="a batch has rows"):
        trainer.eval_step(none[0])


@pytest.mark.parametrize("wrong", [None, "0.5", {}, (1, 2, 3), (1, "2"), np.array([]), 1j])
def test_a_metric_gives_numbers(wrong):
    model, loss, batch = build("perceptron")
    trainer = trainer_of(model, loss, batch(0, 8))
    with pytest.raises(TypeError, match="metric 'right' gives a number.*got"):
        trainer.evaluate([batch(0, 8)], {"right": lambda output, target: wrong})
