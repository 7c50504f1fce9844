"""A trainer on OneFlow."""

from __future__ import annotations

from typing import Any

from ..backend import OptimizerFn
from ..jobs.guard import install_guard
from ..jobs.start import start_trainer
from ..traced import Traced
from ..trainer import Plan, Trainer
from .backend import OneFlow


def build_trainer(traced: Traced, plan: Plan, optimizer: OptimizerFn, **options: Any) -> Trainer:
    """The trainer of this rank. All ranks of the job call it; it installs the guard.

    options: of `Trainer`

    Raises ValueError unless the ranks have the same plan, options, versions and optimizer.
    """
    install_guard()
    return start_trainer(traced, plan, optimizer, OneFlow(), options)
