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


def test_norms_and_clipped_training_are_those_of_one_process(launch):
    """Mixed placements, parameters stored split, stages; the transformer ties two weights.

    A hook changes the gradients before they are clipped.
    """
    clipped = {"clip": 0.3}
    staged = {"stages": 2, "micro_batches": 4}
    cases = [
        {"model": "transformer", "seed": 0, "hook": True},
        {"model": "perceptron", "zero": "mixed", "micro_batches": 2},
        {"model": "transformer", **staged, "hook": True},
        {"model": "transformer", **staged, "chunks": 2},
        {"model": "transformer", "clip": 1e6, "seed": 2},
    ]
    out = launch("loop", 4, json.dumps([{**clipped, **case} for case in cases]))
    assert out.count("equal: ") == len(cases), out
