"""The norm of the whole gradient, wherever a plan has put its parts, and clipping by it."""

import json

import pytest

from autoddl.runtime.update.clip import check_norm


def test_a_limit_is_positive():
    check_norm(None)
    check_norm(1.0)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="clip_grad_norm.*must be positive"):
            check_norm(wrong)


STAGED = {"stages": 2, "micro_batches": 4}


@pytest.mark.parametrize(
    "cases",
    [
        [
            {"model": "perceptron", "zero": "mixed", "micro_batches": 2, "debug": True},
            {"model": "transformer", **STAGED, "hook": True},
        ],
        pytest.param(
            [
                {"model": "transformer", "seed": 0, "hook": True},
                {"model": "transformer", **STAGED, "chunks": 2},
                {"model": "transformer", "clip": 1e6, "seed": 2},
            ],
            marks=pytest.mark.full,
        ),
    ],
)
def test_norms_and_clipped_training_are_those_of_one_process(launch, cases):
    """Mixed placements, parameters stored split, stages; the transformer ties two weights.

    A hook changes the gradients before they are clipped.
    """
    out = launch("loop", 4, json.dumps([{"clip": 0.3, **case} for case in cases]))
    assert out.count("equal: ") == len(cases), out
