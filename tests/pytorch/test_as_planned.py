"""What PyTorch alone has of tests/runtime/test_as_planned.py, which runs there, too."""

import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autoddl
from tests.runtime.random_plans import cluster_of

X, Y = torch.linspace(-1, 1, 48).view(8, 6), torch.linspace(1, -1, 48).view(8, 6)


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.register_buffer("shift", torch.zeros(6))
        self.scale, self.best = 1.0, float("nan")

    def forward(self, x):
        return super().forward(x * self.scale) + self.shift


def trained(model, loss=F.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)):
    trainer = autoddl.parallelize(
        model, cluster_of(1, 1), example=(X, Y), loss=loss, optimizer=optimizer
    )
    trainer.step(X, Y)
    return trainer


def test_a_hook_on_a_parameter_is_refused():
    model = Model()
    trainer = trained(model)
    model[0].weight.register_hook(torch.neg)
    with pytest.raises(ValueError, match=r"parameter 0\.weight has a hook"):
        trainer.step(X, Y)


def test_constants_that_are_numbers_of_the_plan_are_watched():
    """Of equal elements, as ones, a plan has no tensor."""
    ones = torch.ones(6)

    def loss(y, t):
        return (ones * (y - t) ** 2).mean()

    trainer = trained(Model(), loss)
    ones.fill_(0.5)
    with pytest.raises(ValueError, match="neither parameter nor buffer, was changed"):
        trainer.step(X, Y)


def test_constants_that_are_replaced_are_watched():
    ones = torch.ones(6)
    trainer = trained(Model(), lambda y, t: (ones * (y - t) ** 2).mean())
    ones = torch.zeros(6)
    with pytest.raises(ValueError, match="the loss's ones was a tensor .* another one now"):
        trainer.step(X, Y)


share = 0.5


def test_what_changes_around_the_loss_is_refused(monkeypatch):
    part = 0.5

    def inner(y, t):
        return part * F.mse_loss(y, t)

    def outer(y, t):
        return share * F.mse_loss(y, t)

    whole = functools.partial(lambda y, t, part: part * F.mse_loss(y, t), part=0.5)
    module = nn.SmoothL1Loss(beta=0.5)
    trainers = [trained(Model(), loss) for loss in (inner, outer, whole, module)]
    for trainer in trainers:
        trainer.step(X, Y)
    part, whole.keywords["part"], module.beta = 1.0, 1.0, 1.0
    monkeypatch.setitem(globals(), "share", 1.0)
    for trainer in trainers:
        with pytest.raises(ValueError, match="the loss's .* was 0.5 when .* and is 1.0 now"):
            for _ in range(51):
                trainer.step(X, Y)


def test_modes_of_torch_around_a_step_are_refused():
    trainer = trained(Model())
    for call in (
        lambda: trainer.step(X, Y),
        lambda: trainer.eval_step(X),
        lambda: trainer.evaluate([(X, Y)]),
    ):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast"):
            call()
    trainer.step(X, Y)


def test_hooks_on_what_the_optimizer_is_given_are_refused():
    def hooked(parameters):
        parameters[0].register_hook(torch.neg)
        return torch.optim.SGD(parameters, lr=0.1)

    with pytest.raises(ValueError, match="the optimizer was given has a hook on gradients"):
        trained(Model(), optimizer=hooked)


def test_the_norm_of_parts_in_a_hook_is_refused():
    """Each rank would scale its parts by a norm of its own."""
    trainer = trained(Model())

    def clip(named):
        torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 0.1)

    assert trainer.after_backward(clip) is clip
    trainer.step(X, Y)
    next(iter(trainer.parameters().values())).is_part = True  # as of a plan that splits it
    trainer.after_backward(clip)
    with pytest.raises(ValueError, match="clip_grad_norm_ in a hook .* parts"):
        trainer.step(X, Y)
    torch.nn.utils.clip_grad_norm_(Model().parameters(), 0.1)


def test_grad_scalers_are_refused():
    """One in the loss left all gradients scaled, one in the loop updated once more."""
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match='scaled by a GradScaler.* precision="float16"'):
        trained(Model(), lambda y, t: scaler.scale(F.mse_loss(y, t)))
    trained(Model(), lambda y, t: torch.amp.GradScaler("cpu", enabled=False).scale((y - t).sum()))
    trainer = trained(Model())
    scaler.scale(torch.zeros(()))
    scaler.unscale_(trainer.optimizer)
    with pytest.raises(ValueError, match="GradScaler's, too"):
        scaler.step(trainer.optimizer)


KINDS = {
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2, lambd=0.1, t0=1),
    "adam of a tensor's rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
}


@pytest.mark.parametrize("name", KINDS)
def test_optimizers_with_numbers_of_each_parameter_go_on(name, tmp_path):
    torch.manual_seed(0)
    first = trained(Model(), optimizer=KINDS[name])
    first.optimizer.param_groups[0]["lr"] *= 2  # as a schedule does
    first.step(X, Y)
    first.save(tmp_path)
    torch.manual_seed(0)
    second = trained(Model(), optimizer=KINDS[name])
    second.load(tmp_path)
    for _ in range(2):
        assert float(second.step(X, Y)) == float(first.step(X, Y))
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_a_state_that_no_checkpoint_holds_is_refused(tmp_path):
    trainer = trained(Model(), optimizer=lambda p: torch.optim.Adafactor(p))
    with pytest.raises(ValueError, match="Adafactor keeps .* take another optimizer"):
        trainer.save(tmp_path)


@pytest.mark.full
def test_values_given_to_stages_leave_the_model_as_it_is(launch):
    """They went into the user's model where another rank has them, which the step then refused."""
    model = Model()
    for x in model.state_dict().values():
        x.fill_(0.1)
    value = float(F.mse_loss(model(X), Y).detach())
    assert f"2 stages, loss {value:.6f}" in launch(Path(__file__).parent / "given.py", 2)
