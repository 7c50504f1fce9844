"""A GPT on the source text of Python's library: a whole training loop.

    python -m oneflow.distributed.launch --nproc_per_node 4 -m examples.train_gpt
    python -m examples.train_gpt --mesh 1x1

With --checkpoints FOLDER it goes on from the newest one there, on any mesh, and writes more.
"""

from __future__ import annotations

import argparse
from typing import Any

import oneflow as flow

import autoddl
from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss

from .data import Text, loader
from .log import logger

LENGTH, BATCH, VALIDATION = 64, 32, 1_900_000  # the bytes from there on are not trained on


def adamw(parameters: Any) -> flow.optim.Optimizer:
    """Weight decay for matrices only. `parameters` are this rank's, with their names."""
    named = parameters.named()
    matrices = [p for _, p in named if p.ndim >= 2]
    others = [p for _, p in named if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return flow.optim.AdamW(groups, lr=1e-3)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--mesh", default="2x2", help="hosts x devices of each")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--every", type=int, default=50, help="steps between evaluations")
    options.add_argument("--checkpoints", help="folder to go on from and to save to")
    options.add_argument("--logs", help="folder for TensorBoard")
    given = options.parse_args()

    flow.manual_seed(0)
    model = Gpt(layers=2, width=64, heads=4, length=LENGTH, vocabulary=256, dropout=0.1)
    training, held_out = Text(LENGTH, slice(VALIDATION)), Text(LENGTH, slice(VALIDATION, None))
    nodes, gpus = map(int, given.mesh.split("x"))
    trainer = autoddl.parallelize(
        model,
        autoddl.Cluster.load("laptop").with_shape(nodes, gpus),
        example=next(iter(loader(training, BATCH))),
        loss=next_token_loss,
        optimizer=adamw,
        clip_grad_norm=1.0,
    )
    schedule = flow.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, T_max=given.steps)
    if given.checkpoints and (saved := trainer.load(given.checkpoints, missing_ok=True)):
        schedule.load_state_dict(saved)
    log = logger(trainer, given.steps, given.logs, items=LENGTH, unit="tokens")
    steps = range(trainer.steps, given.steps)
    for tokens, targets in loader(training, BATCH, steps, trainer.rows):
        loss = trainer.step(tokens, targets)
        schedule.step()
        if trainer.steps % 10 == 0:
            log({"loss": float(loss), "gradient norm": trainer.grad_norm})
        if trainer.steps % given.every == 0 or trainer.steps == given.steps:
            told = trainer.evaluate(loader(held_out, BATCH, range(4)))
            log({f"held out {name}": value for name, value in told.items()})
            if given.checkpoints:  # each rank writes its shards while training goes on
                trainer.save(given.checkpoints, schedule.state_dict(), keep=2, wait=False)


if __name__ == "__main__":
    main()
