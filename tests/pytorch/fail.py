"""Trains under torchrun, until one rank fails in the way that the arguments say: `mode rank`."""

import os
import signal
import sys
import time

import torch

import autoddl


def main() -> None:
    mode, bad = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    cluster = autoddl.Cluster.load("laptop").with_shape(1, int(os.environ["WORLD_SIZE"]))
    trainer = autoddl.parallelize(
        model,
        cluster,
        example=(x, y),
        loss=nn.functional.mse_loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    for step in range(1000):
        if step == 2 and int(os.environ["RANK"]) == bad:
            print(f"failing at {time.time()}", flush=True)
            if mode == "raise":
                raise RuntimeError("no more data")
            if mode == "exit":
                os._exit(5)
            os.kill(os.getpid(), getattr(signal, mode))
        float(trainer.step(x, y))


main()
