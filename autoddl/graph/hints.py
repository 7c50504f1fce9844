"""Declarations that a user may make about a model before it is planned."""

from __future__ import annotations

from typing import TypeVar

BATCHWISE = "_autoddl_batchwise"
M = TypeVar("M")


def batchwise(module: M) -> M:
    """Declare that `module` treats each row of the batch independently, and return it.

    The module then runs unchanged, as one operator, and may be split along the batch: dim 0 of its
    tensor arguments and results is the batch. Without this declaration a module that contains an
    unknown operator is replicated on all devices.
    """
    setattr(module, BATCHWISE, True)
    return module


def is_batchwise(module: object) -> bool:
    """True if `module` was declared batch-wise."""
    return getattr(module, BATCHWISE, False)
