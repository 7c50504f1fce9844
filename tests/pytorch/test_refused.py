"""What a user is told of models and optimizers that no plan trains, and where it is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoddl.runtime.torch.backend import Torch
from autoddl.runtime.torch.trace.trace import trace_with_state
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp


class Clamped(nn.Linear):
    def forward(self, x):
        self.weight.data = self.weight.data.clamp(-0.1, 0.1)
        return super().forward(x)


class Slope(nn.Linear):
    def forward(self, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(super().forward(x).tanh().sum(), x, create_graph=True)
        return slope


class Packed(nn.LSTM):
    def forward(self, x):
        given = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.ones(len(x)), True)
        return super().forward(given)[0].data


class OnCuda(nn.Linear):
    def forward(self, x):
        return super().forward(x.cuda())


class OnAnother(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.ones(6, 6, device="cuda"))


class Chosen(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Checks(nn.Linear):
    """Finds itself in a trace, where it does something else, as transformers' masks do."""

    def forward(self, x):
        if torch.compiler.is_exporting():
            raise ValueError("a mask of another size")
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Clamped, r"it takes `\.data` or torch\.autograd\.grad"),
        (Slope, r"it takes `\.data` or torch\.autograd\.grad"),
        (Packed, r"1 \(Packed\): it takes sizes from values"),
        pytest.param(
            OnCuda, r"1 \(OnCuda\): it moves .* autoddl places them itself",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it can"),
        ),
        (OnAnother, r"1 \(OnAnother\): it moves or makes tensors on a device"),
        (Chosen, r"1 \(Chosen\): .*data-dependent.*line \d+ of .*test_refused\.py"),
        (Checks, r"1 \(Checks\): ValueError: a mask of another size"),
    ],
)  # fmt: skip
def test_models_are_refused_with_the_module_and_a_way_out(kind, why):
    model = nn.Sequential(nn.Linear(6, 6), kind(6, 6))
    with pytest.raises(ValueError, match=rf"cannot record .*{why}.*autoddl\.opaque\(module\)"):
        trace_with_state(model, torch.eye(6), torch.eye(6), loss=F.mse_loss)


class Listed(nn.Module):
    """A list of parameters beside those that it has."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.every = [self.layer.weight]

    def forward(self, x):
        return F.linear(x, self.every[0], self.layer.bias)


def test_parameters_that_a_list_or_a_closure_holds():
    """Their values would be constants of the plan: no gradient, and what they were at first."""
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), torch.eye(6)
    before = list(model.parameters())

    def decayed(parameters):
        return lambda y, t: F.mse_loss(y, t) + sum(p.square().sum() for p in parameters())

    trace_with_state(model, x, x, loss=decayed(model.parameters))
    for wrong, loss in ((model, decayed(lambda: before)), (Listed(), F.mse_loss)):
        with pytest.raises(ValueError, match=r"weight is read by another way .* model\."):
            trace_with_state(wrong, x, x, loss=loss)


def test_an_optimizer_that_asks_for_the_loss_again():
    whole, _ = Torch().parameter((4, 4), "float32", NdSbp(()), Mesh(1, 1), 0, True)
    with pytest.raises(ValueError, match=r"LBFGS\.step asks for 'closure'.* such as SGD or Adam"):
        Torch().optimizer(torch.optim.LBFGS, [whole])

    def followed(parameters):
        own = torch.optim.Adam(parameters)
        torch.optim.lr_scheduler.StepLR(own, 1)  # puts another `step` in front
        return own

    assert Torch().optimizer(followed, [whole])
