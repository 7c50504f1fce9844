"""Batches that are nested, or dicts: traced, planned, trained and evaluated."""

from typing import Any

import numpy as np
import pytest

import autoddl
from autoddl.runtime.calling import Calling, as_arguments
from tests.framework import flow
from tests.runtime.dict_models import DICTS, called
from tests.runtime.test_trainer import trainer_of
from tests.runtime.training import arrays, build


@pytest.mark.parametrize("name", DICTS)
def test_models_of_dicts_are_those_of_one_process(name):
    model, loss, batch = build(name)
    trainer = trainer_of(model, loss, as_arguments(batch(0, 8)), micro_batches=2)
    same, loss, batch = build(name)
    made = flow.optim.SGD(same.parameters(), lr=0.1)
    for step, rows in enumerate((8, 5)):
        _, expected = called(same, loss, batch(step, rows))
        expected.backward()
        made.step()
        made.zero_grad()
        found = trainer.step(*as_arguments(batch(step, rows)))
        np.testing.assert_allclose(float(found), float(expected), rtol=1e-6)
    for key, value in arrays(same).items():
        np.testing.assert_allclose(arrays(trainer)[key], value, rtol=1e-5, atol=1e-7, err_msg=key)
    data = [batch(3, 8), batch(4, 3)]
    weights = [8 / 11, 3 / 11]
    same.eval()
    expected = sum(
        w * float(called(same, loss, one)[1]) for w, one in zip(weights, data, strict=True)
    )
    seen = []

    def labels(output, target):
        seen.append(type(output))
        return target["labels"] > 0

    scores = trainer.evaluate(data, {"labels": labels})
    assert scores["loss"] == pytest.approx(expected, rel=1e-6) and set(seen) == {dict}
    one = batch(5, 8)
    inputs = ({k: one[k] for k in ("ids", "mask")},) if isinstance(one, dict) else one[:-1]
    result = trainer.eval_step(*inputs)
    assert result.keys() == {"logits", "hidden"}


def test_what_is_another_batch_is_named():
    model, loss, batch = build("by name")
    trainer = trainer_of(model, loss, (batch(0, 8),))
    one: Any = batch(0, 8)
    del one["mask"]
    with pytest.raises(ValueError, match="batch has no 'mask', which the example has"):
        trainer.step(one)
    with pytest.raises(ValueError, match="eval_step has no 'mask', .* such as zeros for labels"):
        trainer.eval_step(one)
    with pytest.raises(ValueError, match="step takes one dict, as the example is"):
        trainer.step(one["ids"], one["labels"])
    model, loss, batch = build("nested")
    trainer = trainer_of(model, loss, batch(0, 8))
    (pair, target) = batch(0, 8)
    with pytest.raises(ValueError, match=r"batch\[0\]: expected a tuple as in the example"):
        trainer.step(pair[0], target)
    with pytest.raises(ValueError, match=r"batch\[0\] has 3 items, the example 2"):
        trainer.step((*pair, pair[0]), target)


def test_an_example_holds_nothing_but_tensors():
    def forward(x, y):
        return x

    with pytest.raises(ValueError, match=r"example\[0\]\['x'\] is a int; .* be a Tensor"):
        Calling.of(({"x": 3}, flow.ones(2)), forward, flow.Tensor, True)
    with pytest.raises(ValueError, match="forward takes none of the example's keys, z"):
        Calling.of(({"z": flow.ones(2)},), forward, flow.Tensor, True)


def test_what_forward_takes_is_in_the_example_or_in_no_batch():
    """A plan without it would leave it out without a word."""

    def forward(x, mask=None):
        return x

    def every(**batch):
        return batch["x"]

    x = flow.ones(2)
    given = {"x": x, "y": x}
    for function, known in ((forward, {"id": x, "mask": None}), (every, {"id": 3, "mask": None})):
        calling, _ = Calling.of((given,), function, flow.Tensor, True)
        assert len(calling.flat("step", ({**given, **known},))) == 2
        for call in (calling.flat, calling.inputs):
            with pytest.raises(ValueError, match="the batch of step has 'mask', which forward"):
                call("step", ({**given, "mask": x},))


def test_a_graphs_name_is_a_text():
    name: Any = 3
    with pytest.raises(TypeError, match=r"`name` is the graph's, or None, got 3 \(int\)"):
        autoddl.trace(flow.nn.Linear(2, 2), flow.ones(2, 2), name=name)
