"""What is changed after a model was planned, or around a step, is refused, or told wrong."""

import copy

import pytest

import autoddl
from tests.framework import flow, nn
from tests.runtime.random_plans import cluster_of

VALUES = [[(6 * i + j) / 24 - 1 for j in range(6)] for i in range(8)]


class Model(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.register_buffer("shift", flow.zeros(6))
        self.scale, self.best, self.factors = 1.0, float("nan"), flow.arange(6).float()

    def forward(self, x):
        return super().forward(x * self.scale) * self.factors + self.shift


def batch():
    return flow.tensor(VALUES), flow.tensor(VALUES) * -1


def planned(model, loss=None, optimizer=lambda p: flow.optim.SGD(p, lr=0.1)):
    return autoddl.parallelize(
        model, cluster_of(1, 1), example=batch(), loss=loss or nn.MSELoss(), optimizer=optimizer
    )


def clamp(model):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def average(model):
    with flow.no_grad():
        model[2].weight.mul_(0.9)


NEITHER = "is neither parameter nor buffer, was changed"
CHANGES = {
    "clamped weights": (clamp, r"0\.weight was changed in the model .*load_state_dict"),
    "an average": (average, r"2\.weight was changed in the model"),
    "a buffer": (lambda m: m.shift.fill_(1.0), "shift was changed in the model"),
    "loaded": (lambda m: m.load_state_dict(Model().state_dict()), "was changed in the model"),
    "frozen": (lambda m: m[0].weight.requires_grad_(False), r"0\.weight was frozen after"),
    "a number": (lambda m: setattr(m, "scale", 0.5), "scale was 1.0 when .* and is 0.5 now"),
    "a layer": (lambda m: setattr(m, "1", nn.ReLU()), "module 1 was Tanh .* and is ReLU"),
    "a layer of its kind": (lambda m: setattr(m, "0", nn.Linear(6, 6)), "is another Linear now"),
    "a parameter": (
        lambda m: setattr(m[0], "weight", nn.Parameter(flow.zeros(6, 6))),
        r"0\.weight was a tensor when .* and is another one now",
    ),
    "a constant": (lambda m: m.factors.fill_(1.0), NEITHER),
    "another constant": (
        lambda m: setattr(m, "factors", flow.ones(6)), "factors was a tensor when .* another one",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full if name in ("an average", "loaded") else ())
        for name in CHANGES
    ],
)
def test_what_changes_in_the_model_is_refused(name):
    change, why = CHANGES[name]
    model = Model()
    trainer = planned(model)
    trainer.step(*batch())
    model.eval()  # as loops do
    trainer.step(*batch())
    trainer.load_state_dict(trainer.state_dict())
    copy.deepcopy(model).load_state_dict(trainer.state_dict())
    model.train()
    change(model)
    with pytest.raises(ValueError, match=why):
        for _ in range(51):
            trainer.step(*batch())


def test_what_changes_around_the_loss_is_refused():
    share, weights = 0.5, flow.arange(6).float()

    def number(y, t):
        return share * ((y - t) ** 2).mean()

    def tensor(y, t):
        return (weights * (y - t) ** 2).mean()

    trainers = [planned(Model(), loss) for loss in (number, tensor)]
    share, weights = 1.0, flow.ones(6)
    for trainer, why in zip(
        trainers, ("share was 0.5 .* is 1.0", "weights was a tensor"), strict=True
    ):
        with pytest.raises(ValueError, match=f"the loss's {why}"):
            trainer.step(*batch())


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_step_without_gradients_is_refused(mode):
    """It gave a loss and trained nothing."""
    trainer = planned(Model())
    with getattr(flow, mode)(), pytest.raises(ValueError, match="step computes gradients"):
        trainer.step(*batch())
    with getattr(flow, mode)():
        trainer.eval_step(batch()[0])
    trainer.step(*batch())


def test_a_loop_that_updates_once_more_is_refused():
    """Its optimizer took the same gradients again."""
    trainer = planned(Model())
    trainer.step(*batch())
    before = {name: x.numpy().copy() for name, x in trainer.state_dict().items()}
    with pytest.raises(ValueError, match=r"leave out optimizer\.step"):
        trainer.optimizer.step()
    for name, x in trainer.state_dict().items():
        assert (x.numpy() == before[name]).all()
    schedule = flow.optim.lr_scheduler.StepLR(trainer.optimizer, 1, 0.5)
    trainer.step(*batch())
    schedule.step()
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05


class Strange(nn.Module):
    """Something that runs as it is."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, x):
        return x * self.factor


def test_what_runs_as_it_is_may_change():
    strange = autoddl.opaque(Strange())
    trainer = planned(
        nn.Sequential(nn.Linear(6, 6), strange), optimizer=lambda p: flow.optim.SGD(p, lr=0.0)
    )
    first = float(trainer.step(*batch()))
    strange.factor = 0.0
    assert float(trainer.step(*batch())) != first


class Judged(nn.Module):
    """What a generator makes, and what its critic says of it."""

    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic

    def forward(self, x):
        made = self.generator(x)
        return self.critic(made), made


def fools(output, target):
    return ((output[0] - target) ** 2).mean()


def test_trainers_that_take_turns_need_parameters_apart():
    """They trained two copies of the critic apart."""
    generator, critic = Model(), Model()
    one, other = planned(critic), planned(Judged(generator, critic), fools)
    one.step(*batch())
    other.step(*batch())
    with pytest.raises(ValueError, match=r"0\.weight is trained by another trainer, too"):
        one.step(*batch())
    other.step(*batch())
    again = planned(copy.deepcopy(critic))
    again.step(*batch())
    other.step(*batch())


def test_a_generator_and_its_critic():
    """As docs/training-loop.md has it: losses are those of OneFlow itself."""
    flow.manual_seed(0)
    generator, critic = Model(), Model()
    own = [copy.deepcopy(generator), copy.deepcopy(critic)]
    frozen = copy.deepcopy(critic)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    x, y = batch()

    def adam(parameters):
        return flow.optim.Adam(parameters, lr=0.01)

    judging = planned(critic, optimizer=adam)
    generating = planned(Judged(generator, frozen), fools, optimizer=adam)
    optimizers = [adam(m.parameters()) for m in own]
    for _ in range(4):
        _, made = generating.eval_step(x)
        found = [float(judging.step(made, y))]
        told = {f"critic.{name}": value for name, value in judging.state_dict().items()}
        generating.load_state_dict({**generating.state_dict(), **told})
        found.append(float(generating.step(x, -y)))
        expected = []
        for optimizer, target in ((optimizers[1], y), (optimizers[0], -y)):
            for one in optimizers:
                one.zero_grad()
            loss = nn.MSELoss()(own[1](own[0](x)), target)
            loss.backward()
            optimizer.step()
            expected.append(float(loss.detach()))
        assert found == pytest.approx(expected, rel=1e-5)
