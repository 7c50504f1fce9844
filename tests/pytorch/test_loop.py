"""The loop around the step, as OneFlow's tests have it: clipping, groups, a schedule, averages,
evaluation and going on by other plans equal one process to 1e-6 (`tests/runtime/workers/loop.py`).
"""

import json
from pathlib import Path

import pytest

from tests.runtime.loop_cells import PLACES
from tests.runtime.loop_cells import cases as cells

WORKER = Path(__file__).parents[1] / "runtime" / "workers" / "loop.py"
STAGED = {"stages": 2, "micro_batches": 4}
WHOLE = {"optimizer": "groups", "steps": 2, "ema": 0.7}
ONE_AXIS = {"nodes": 1, "gpus": 4, "seed": 4}
FULL = pytest.mark.full


@pytest.mark.parametrize(
    "cases",
    [
        [
            {"model": "perceptron", "clip": 0.3, "zero": "mixed", "micro_batches": 2},
            {"model": "transformer", "clip": 0.3, "hook": True, **STAGED},
            {
                "model": "perceptron",
                "seed": 0,
                **WHOLE,
                "scored": [8, 3],
                "then": [ONE_AXIS, STAGED],
            },
        ],
        pytest.param(
            [
                {"model": "transformer", "clip": 0.3, "seed": 0, "hook": True},
                {"model": "transformer", "clip": 0.3, **STAGED, **WHOLE, "then": [ONE_AXIS]},
                {"model": "dense", "zero": "mixed", **WHOLE, "then": [{}], "uninterrupted": True},
            ],
            marks=FULL,
        ),
    ],
    ids=["quick", "more"],
)
def test_a_loop_in_parallel_is_that_of_one_process(launch, cases):
    out = launch(WORKER, 4, json.dumps(cases))
    assert out.count("equal: ") == len(cases), out


@FULL
@pytest.mark.parametrize("place", PLACES)
def test_each_part_of_a_loop_is_that_of_one_process(launch, place):
    every = cells(place)
    out = launch(WORKER, 4, json.dumps(every), timeout=900)
    assert out.count("equal: ") == len(every), out
