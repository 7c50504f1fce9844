"""Trains, and goes on from checkpoints: `folder kills`. Rank 1 is killed in the first starts."""

import os
import signal
import sys

import torch

import autoddl

STEPS = 6


def main() -> None:
    folder, kills, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    data = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(STEPS)]
    trainer = autoddl.parallelize(
        model,
        autoddl.Cluster.load("laptop").with_shape(1, int(os.environ["WORLD_SIZE"])),
        example=data[0],
        loss=nn.functional.mse_loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    )
    trainer.load(folder, missing_ok=True)
    while trainer.steps < STEPS:
        step = trainer.steps
        loss = float(trainer.step(*data[step]))
        if rank == 0:
            print(f"loss {step} {loss!r}", flush=True)
        trainer.save(folder, keep=2)
        if rank == 1 and start < kills and trainer.steps == 2 * (start + 1):
            os.kill(os.getpid(), signal.SIGKILL)


main()
