"""Bytes that a plan keeps on one device.

    parameters  local bytes x (weight + gradient + optimiser slots)
    activations local bytes of every output that the backward pass may need, of one micro-batch
    copies      local bytes of every redistributed input

`parameter_copies` gives the first factor; `search.tables` adds the parts up.
"""

from __future__ import annotations

OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def parameter_copies(optimizer: str) -> int:
    """How many tensors of a parameter's size live on a device: weight, gradient, slots."""
    try:
        return 2 + OPTIMIZER_SLOTS[optimizer]
    except KeyError:
        known = ", ".join(OPTIMIZER_SLOTS)
        raise ValueError(f"unknown optimizer {optimizer!r} for planning; known: {known}") from None
