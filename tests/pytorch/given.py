"""Gives a trainer of two stages the model's values before a step, and prints the step's loss."""

import torch
import torch.nn.functional as F

import autoddl
from autoddl.runtime.jobs.guard import rank
from tests.pytorch.test_as_planned import Model, X, Y
from tests.runtime.random_plans import cluster_of


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = autoddl.parallelize(
        Model(), cluster_of(1, 2), example=(X, Y), loss=F.mse_loss, stages=2, micro_batches=2,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    trainer.load_state_dict({k: torch.full_like(v, 0.1) for k, v in trainer.state_dict().items()})
    value = float(trainer.step(X, Y))
    if rank() == 0:
        print(f"{trainer.plan.num_stages} stages, loss {value:.6f}")


main()
