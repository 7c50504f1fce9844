"""A ResNet-18 of flowvision, as it is, on handwritten digits: a whole training loop.

    python -m oneflow.distributed.launch --nproc_per_node 4 -m examples.train_resnet
    python -m examples.train_resnet --mesh 1x1

With --checkpoints FOLDER it goes on from the newest one there, on any mesh, and writes more.
"""

from __future__ import annotations

import argparse

import oneflow as flow
from flowvision.models import resnet18

import autoddl

from .data import Digits, loader
from .log import logger

VALIDATION = 1669  # the digits from there on are not trained on


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--mesh", default="2x2", help="hosts x devices of each")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--steps", type=int, default=208, help="52 are an epoch")
    options.add_argument("--every", type=int, default=52, help="steps between evaluations")
    options.add_argument("--checkpoints", help="folder to go on from and to save to")
    options.add_argument("--logs", help="folder for TensorBoard")
    given = options.parse_args()

    flow.manual_seed(0)
    training, held_out = Digits(slice(VALIDATION), 3), Digits(slice(VALIDATION, None), 3)
    nodes, gpus = map(int, given.mesh.split("x"))
    trainer = autoddl.parallelize(
        resnet18(num_classes=10),
        autoddl.Cluster.load("laptop").with_shape(nodes, gpus),
        example=next(iter(loader(training, given.batch))),
        loss=flow.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: flow.optim.SGD(parameters, lr=0.05, momentum=0.9),
        clip_grad_norm=5.0,
        ema_decay=0.9,  # evaluated are the averaged parameters
    )
    schedule = flow.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, T_max=given.steps)
    if given.checkpoints and (saved := trainer.load(given.checkpoints, missing_ok=True)):
        schedule.load_state_dict(saved)
    log = logger(trainer, given.steps, given.logs, unit="images")
    correct = {"accuracy": lambda output, label: output.argmax(-1) == label}
    steps = range(trainer.steps, given.steps)
    for images, labels in loader(training, given.batch, steps, trainer.rows):
        loss = trainer.step(images, labels)
        schedule.step()
        if trainer.steps % 8 == 0:
            log({"loss": float(loss), "gradient norm": trainer.grad_norm})
        if trainer.steps % given.every == 0 or trainer.steps == given.steps:
            with trainer.averaged():
                told = trainer.evaluate(loader(held_out, given.batch), metrics=correct)
            log({f"held out {name}": value for name, value in told.items()})
            if given.checkpoints:  # each rank writes its shards while training goes on
                trainer.save(given.checkpoints, schedule.state_dict(), keep=2, wait=False)


if __name__ == "__main__":
    main()
