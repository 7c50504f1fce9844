"""Blocks that run forward again give the same bits as blocks that keep everything."""

import json

import pytest

ADAM, MOMENTUM = "adam", "sgd"


def case(model, optimizer, micro_batches=1, seed=0, alone=True):
    return json.dumps(
        {"model": model, "optimizer": optimizer, "micro_batches": micro_batches, "seed": seed,
         "alone": alone}
    )  # fmt: skip


def test_bits_on_2x2(launch):
    """Equal to the same plan without recomputation, and, within rounding, to one process."""
    cases = [case("stack", ADAM, 2)]
    assert launch("recompute", 4, *cases).count("equal: ") == len(cases)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", [ADAM, MOMENTUM])
def test_masks_moving_statistics_and_more_random_plans(launch, optimizer):
    """Masks are drawn alike, moving statistics change once."""
    cases = [
        case(model, optimizer, parts, seed, alone=model == "stack")
        for model in ("stack", "dropped stack", "conv stack")
        for parts in (1, 2)
        for seed in (2, 3)
    ]
    assert launch("recompute", 4, *cases, timeout=500).count("equal: ") == len(cases)
