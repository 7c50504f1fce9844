"""What the demo trains: a small VGG13 on handwritten digits, a small GPT on Python's library.

Run as a process of the demo, `python -m examples.tasks NAME LOSSES [PLAN]` trains one of them and
writes its losses: as a rank of a parallel job with PLAN, else alone, with plain OneFlow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow.utils.data import DataLoader, Dataset

import autoddl
from autoddl._files import write_atomically
from autoddl.runtime.oneflow.models.gpt import gpt_small
from autoddl.runtime.oneflow.models.vgg import vgg13_small

from .data import Digits, Text, loader

SEED = 7
STEPS = 24


@dataclass(frozen=True)
class Task:
    """`build` gives (model, example, loss); each step takes the next `batch` rows of `data`.

    lr: Adam's; small enough that rounding does not grow much over the demo's steps
    """

    title: str
    build: Callable[[], tuple[Any, tuple[Any, ...], Callable[..., Any]]]
    data: Callable[[], Dataset]
    batch: int
    lr: float

    def optimizer(self, parameters: Any) -> Any:
        return flow.optim.Adam(parameters, lr=self.lr)

    def steps(self) -> DataLoader:
        """The batch of each step."""
        return loader(self.data(), self.batch, range(STEPS))


TASKS = {
    "vgg": Task(
        "VGG13 (small) on handwritten digits",
        vgg13_small,
        Digits,
        32,
        1e-4,
    ),
    "gpt": Task(
        "GPT (small) on the source text of Python's library",
        gpt_small,
        lambda: Text(32),
        16,
        1e-3,
    ),
}


def train_alone(task: Task) -> list[float]:
    """The losses of plain OneFlow in one process: what autoddl has to reproduce."""
    flow.manual_seed(SEED)
    model, _, loss_of = task.build()
    optimizer = task.optimizer(model.parameters())
    losses: list[float] = []
    for x, y in task.steps():
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.numpy()))
    return losses


def train_parallel(task: Task, plan: autoddl.Plan) -> list[float]:
    """The losses of the parallel job, of which this process is one rank."""
    flow.manual_seed(SEED)
    model, example, loss_of = task.build()
    trainer = autoddl.parallelize(
        model, plan.cluster, example=example, loss=loss_of, optimizer=task.optimizer, plan=plan
    )
    return [float(trainer.step(x, y)) for x, y in task.steps()]


def main(name: str, losses_file: str, plan_file: str | None = None) -> None:
    task = TASKS[name]
    if plan_file is None:
        losses = train_alone(task)
    else:
        losses = train_parallel(task, autoddl.Plan.load(plan_file))
    if flow.env.get_rank() == 0:
        write_atomically(Path(losses_file), json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
