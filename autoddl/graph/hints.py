"""What a user may say about a model before it is planned."""

from __future__ import annotations

from typing import TypeVar

BATCHWISE = "_autoddl_batchwise"
M = TypeVar("M")


def batchwise(module: M) -> M:
    """Declare that `module` works on each row of the batch by itself, and give it back.

    It then runs as it is, as one operator, and the batch may be split: its tensor arguments and
    results have the batch as dim 0. Without the declaration a module that holds an unknown operator
    is replicated.
    """
    setattr(module, BATCHWISE, True)
    return module


def is_batchwise(module: object) -> bool:
    """True if `module` was declared batch-wise."""
    return getattr(module, BATCHWISE, False)
