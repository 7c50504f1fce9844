"""What an example says of its training: lines on one rank, and scalars for TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from datetime import timedelta

from autoddl.runtime.trainer import Trainer

Log = Callable[[Mapping[str, float | None]], None]


def logger(trainer: Trainer, steps: int, folder: str | None, unit: str, items: int = 1) -> Log:
    """A function of values by name; all ranks may call it, and the first one prints.

    It adds the rate, of which a row has `items`, and the time left until `steps`.

    folder: for TensorBoard, which needs the package tensorboardX
    unit:   what is counted, such as tokens
    """
    if not trainer.is_main:
        return lambda values: None
    writer = importlib.import_module("tensorboardX").SummaryWriter(folder) if folder else None

    def log(values: Mapping[str, float | None]) -> None:
        told = {name: value for name, value in values.items() if value is not None}
        left = ""
        if rate := trainer.rows_per_second:
            told[f"{unit} a second"] = rate * items
            seconds = (steps - trainer.steps) * trainer.plan.batch / rate
            left = f", {timedelta(seconds=round(seconds))} left"
        words = ", ".join(f"{name} {value:.4g}" for name, value in told.items())
        print(f"step {trainer.steps}: {words}{left}", flush=True)
        for name, value in told.items():
            if writer:
                writer.add_scalar(name, value, trainer.steps)

    return log
