"""Bytes that a plan keeps on one device.

    parameters  local bytes x (weight + gradient) + float32 x (optimiser slots + master copy)
    activations local bytes of every output that the backward pass may need, of one micro-batch,
                and what operators keep beside (`forward`)
    copies      local bytes of every redistributed input
    gradients   of shared parameters and of the last product, see `gradients`

`parameter_copies` gives the first factor; `planner.tables.tables` adds the parts up.
"""

from __future__ import annotations

OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def parameter_copies(optimizer: str, precision: str = "float32") -> int:
    """How many tensors of a parameter's bytes live on a device: weight, gradient, slots.

    With float16 parameters the slots are float32 nonetheless, and there is a master copy.
    """
    try:
        slots = OPTIMIZER_SLOTS[optimizer]
        return 2 + (slots if precision == "float32" else 2 * (slots + 1))
    except KeyError:
        known = ", ".join(OPTIMIZER_SLOTS)
        raise ValueError(f"unknown optimizer {optimizer!r} for planning; known: {known}") from None
