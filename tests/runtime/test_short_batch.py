"""A last batch that is shorter than the plan's counts as it does on one device."""

import json

import numpy as np
import pytest

from autoddl.runtime.counting import Counting, Given
from autoddl.runtime.kernel import Filled
from tests.exactness.losses import EXACT, WHOLE
from tests.framework import flow
from tests.runtime.test_trainer import trainer_of
from tests.runtime.training import arrays, build

SUMS = [*EXACT, "classifier", "towers", "stack"]


def plain(parameters):
    return flow.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("name", "micro_batches"), [*((name, 4) for name in SUMS), ("masked", 1), ("ignoring", 1)]
)
def test_sums_over_rows_leave_padding_out(name, micro_batches):
    model, loss, batch = build(name)
    trainer = trainer_of(model, loss, batch(0, 8), micro_batches=micro_batches, optimizer=plain)
    same, loss, batch = build(name)
    made = plain(same.parameters())
    for step, rows in enumerate((8, 5, 1, 8)):
        *inputs, target = batch(step + 3, rows)
        expected = loss(same(*inputs), target)
        expected.backward()
        made.step()
        made.zero_grad()
        found = trainer.step(*inputs, target)
        np.testing.assert_allclose(float(found), float(expected), rtol=1e-5)
    for key, value in arrays(same).items():
        np.testing.assert_allclose(arrays(trainer)[key], value, rtol=1e-4, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", [*WHOLE, "convnet"])
def test_rows_that_meet_are_refused(name):
    model, loss, batch = build(name)
    trainer = trainer_of(model, loss, batch(0, 8), optimizer=plain)
    with pytest.raises(
        ValueError, match=r"expected 8 rows, got 5. rows.* meet in .*drop_last=True"
    ):
        trainer.step(*batch(0, 5))
    trainer.step(*batch(0, 8))


SEVERAL = {"stages": 2, "micro_batches": 4}


@pytest.mark.parametrize(
    "cases",
    [
        [
            {"model": "ignoring words", "seed": 0, "micro_batches": 2, "short": 5},
            {"model": "masked", **SEVERAL, "short": 3, "clip": 0.3},
        ],
        pytest.param(
            [
                {"model": "ignoring words", "seed": 0, "debug": True, "short": 5},
                {"model": "by name", "seed": 1, "short": 1},
                {"model": "by name", "stages": 2, "micro_batches": 2, "short": 5},
                # sums that are computed in several stages, which then take whole batches only
                {"model": "weighing", "stages": 2, "scored": [], "steps": 2},
            ],
            marks=pytest.mark.full,
        ),
    ],
)
def test_short_batches_on_several_devices_are_those_of_one_process(launch, cases):
    """Mixed placements, micro-batches, a shorter batch than ranks, stages; sums of weights.

    What they have learned is evaluated on batches of other sizes. Batches and results are dicts in
    some.
    """
    out = launch("loop", 4, json.dumps([{"scored": [8, 11, 3], **case} for case in cases]))
    assert out.count("equal: ") == len(cases), out


def test_whole_batches_and_a_ranks_own_rows_are_told_apart():
    """A rank that reads 4 of 8 rows: what it gave before says what 4 rows are."""
    model, loss, batch = build("perceptron")
    graph = trainer_of(model, loss, batch(0, 8)).graph
    own, whole = (Given(Counting.of(graph, 1), graph, 8, 4) for _ in range(2))
    assert own.filled(batch(0, 4)) is None and whole.filled(batch(0, 8)) is None
    assert whole.filled(batch(0, 4)) == Filled(4, 8)
    assert own.filled(batch(0, 4)) is None
    with pytest.raises(ValueError, match="expected 4 rows, this rank's of a batch"):
        own.filled(batch(0, 3))
