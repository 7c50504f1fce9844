"""What only one rank does, once all train, raises on all of them; OneFlow's or PyTorch's.

Each case trains three steps in which all ranks do the same, then the last one does something else.
"""

import os
from tempfile import TemporaryDirectory

import pytest

from autoddl.runtime.jobs.guard import rank, world_size
from autoddl.runtime.update.loss_scale import LossScaler
from tests.exactness.schemes import plan_of
from tests.framework import build_trainer, flow, trace_with_state
from tests.runtime.random_plans import cluster_of
from tests.runtime.training import build

BAD = world_size() - 1
IS_BAD = rank() == BAD
STEPS = 3


def scheduler(trainer):
    """All ranks have one, and only theirs differ."""
    trainer.scheduler = flow.optim.lr_scheduler.StepLR(trainer.optimizer, 2 - IS_BAD, gamma=0.5)
    trainer.scheduler.step()


def rate(trainer):
    if IS_BAD:
        trainer.optimizer.param_groups[0]["lr"] = 0.3


def decay(trainer):
    if IS_BAD:
        trainer.optimizer.param_groups[-1]["weight_decay"] = 0.3


def scale(trainer):
    if IS_BAD:
        trainer.scaler.scale /= 2


def clip(trainer):
    if IS_BAD:
        trainer._update.limit = 0.5


def average(trainer):
    if IS_BAD:
        trainer._update.average.decay = 0.5


def counted(trainer):
    if IS_BAD:
        trainer._job.run_state.step += 1


def one_more_hook(trainer):
    if IS_BAD:
        trainer.after_backward(lambda named: None)


def hook(trainer):
    """The same on all, which does more on one."""

    @trainer.after_backward
    def changes(named):
        for _, parameter in named:
            if IS_BAD:
                parameter.grad *= 1.1


def values(trainer):
    """Seen when they are to be saved, or after some steps."""
    for parameter in trainer.parameters().values() if IS_BAD else ():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        with flow.no_grad():
            local.data.mul_(1.2)
    trainer.state_dict()


def evaluates(trainer):
    if IS_BAD:
        trainer.evaluate([trainer.batch])


def saves(trainer):
    if IS_BAD:
        with TemporaryDirectory() as folder:
            trainer.save(folder)


def asks(trainer):
    if IS_BAD:
        trainer.eval_step(*trainer.batch[:-1])


def short(trainer):
    """The batch after has fewer rows."""
    if IS_BAD:
        trainer.batch = [x[:4] for x in trainer.batch]


def other_rows(trainer):
    """Batches are compared every so many steps."""
    trainer._job.run_state.step = 100
    if IS_BAD:
        trainer.batch = [x + 1 for x in trainer.batch]


def other_inputs(trainer):
    inputs = [x + IS_BAD for x in trainer.batch[:-1]]
    trainer.eval_step(*inputs)


def other_size(trainer):
    trainer.eval_step(*(x[: 4 if IS_BAD else 8] for x in trainer.batch[:-1]))


def other_targets(trainer):
    """All inputs are alike; a batch that is scored has a target, too."""
    trainer.evaluate([(*trainer.batch[:-1], trainer.batch[-1] + IS_BAD)])


ALIKE = {
    scheduler: "options of the optimizer: group 0 with lr 0.1 on rank 0.* 0.05 on rank",
    rate: "group 0 with lr 0.1 on rank 0.* lr 0.3 on rank",
    decay: "with weight_decay 0.* but .*0.3 on rank",
    scale: "settings: loss scale .*8.0, .* on rank 0.* but .*4.0, .* on rank",
    clip: "settings: clip_grad_norm 9.0 on rank 0.* but clip_grad_norm 0.5 on rank",
    average: "settings: ema_decay 0.9 on rank 0.* but ema_decay 0.5 on rank",
    counted: "settings: steps 3 on rank 0.* but steps 4 on rank",
    one_more_hook: r"settings: hooks \[\] on rank 0.* but hooks .*lambda.* on rank",
    hook: r"copies of gradients along mesh axis 0: norm of \S+ \S+ on rank 0.* but norm",
    values: r"copies of parameters along mesh axis 0: norm of \S+ \S+ on rank 0.* but norm",
    other_rows: "tensor 0 of the batch is not the same on rank 0 and rank",
    other_inputs: "tensor 0 of the batch is not the same on rank 0 and rank",
    other_targets: "tensor 1 of the batch is not the same on rank 0 and rank",
}
CALLS = {
    evaluates: "step on rank 0.*; evaluate with a batch of 8 rows on rank|evaluate .* on rank",
    saves: "step on rank 0.*; save on rank",
    asks: "step on rank 0.*; eval_step with a batch of 8 rows on rank",
    other_size: "eval_step with a batch of 4 rows on rank .*; eval_step with a batch of 8 rows on",
    short: "step with a batch of 4 rows on rank",
}
# of what a rank holds alone there is no copy
WITHOUT_COPIES = (hook, values)


def main():
    for scheme in ("data_parallel", "stages:2"):
        for case, message in {**ALIKE, **CALLS}.items():
            if scheme == "data_parallel" or case not in WITHOUT_COPIES:
                tried(scheme, case, message)
    if rank() == 0:
        print("all are refused")


def tried(scheme, case, message):
    model, loss, batch = build("perceptron")
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    plan = plan_of(scheme, traced.graph, cluster_of(1, world_size()), "sgd", 1)
    trainer = build_trainer(
        traced, plan, lambda p: flow.optim.SGD(p, lr=0.1),
        scaler=LossScaler(8.0), clip_grad_norm=9.0, ema_decay=0.9,
    )  # fmt: skip
    for step in range(STEPS):
        trainer.step(*batch(step, 8))
    trainer.batch = batch(STEPS, 8)
    with pytest.raises(RuntimeError, match=message):
        case(trainer)
        for _ in range(2):  # hooks are heard of with the next step
            trainer.step(*trainer.batch)
        print(f"{scheme}: {case.__name__} was not seen", os.getpid())


main()
