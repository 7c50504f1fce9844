"""A trainer on OneFlow."""

from __future__ import annotations

import atexit
from typing import Any

from ..backend import OptimizerFn
from ..jobs.guard import install_guard
from ..traced import Traced
from ..trainer import Plan, Trainer
from .backend import OneFlow


def build_trainer(traced: Traced, plan: Plan, optimizer: OptimizerFn, **options: Any) -> Trainer:
    """The trainer of this rank. All ranks of the job call it; it installs the guard.

    options: of `Trainer`
    """
    install_guard()
    trainer = Trainer(traced, plan, optimizer, OneFlow(), **options)
    atexit.register(trainer.roll_call.at_exit)
    return trainer
