"""Calls in place: what a plan computes is what eager torch does."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tests.pytorch.models import same_gradients  # noqa: E402


class Changes(nn.Module):
    """`how(self, y)` of a convolution's result and a BatchNorm's."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.norm, self.how = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), how

    def forward(self, x):
        return self.how(self, self.conv(x)).mean(2)


@pytest.fixture
def exports(monkeypatch):
    """How often a program was written anew, which takes twice as long as its export."""
    again, own = [], torch.export.ExportedProgram.run_decompositions

    def counted(*given):
        again.append(given)
        return own(*given)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    return again


def check(how):
    torch.manual_seed(0)
    same_gradients(Changes(how), torch.randn(4, 3, 8), torch.randn(4, 4))


def normal(model, y):
    return model.norm(y).relu_()


def aside(model, y):
    model.norm(y).relu_()
    return y.tanh()


def added(model, y):
    z = model.norm(y)
    z += y
    return F.dropout(z.flatten(1), 0.0, inplace=True).unflatten(1, (4, -1)).mul_(2)


@pytest.mark.parametrize("how", [normal, aside, added])
def test_what_nobody_else_reads_is_exported_once(how, exports):
    check(how)
    assert not exports


def read_by_a_view(model, y):
    row = y[:, 0]
    y.mul_(3)
    return y * row.unsqueeze(1)


def written_by_a_view(model, y):
    y.view(4, -1).relu_()
    return y


def written_by_expanding(model, y):
    z = y.mean(2, keepdim=True)
    w = z.expand(-1, -1, 2)
    z.mul_(2)
    return w + y[:, :, :2]


def twice_normal(model, y):
    return model.norm(model.norm(y).relu_())


HOWS = [twice_normal, read_by_a_view, written_by_a_view, written_by_expanding]


@pytest.mark.parametrize("how", HOWS)
def test_what_others_read_is_changed_for_them(how, exports):
    check(how)
    assert exports


def under_no_grad(model, y):
    with torch.no_grad():
        z = y.mul_(2)
    return y + z


def of_detached(model, y):
    z = y * 3
    y.detach()[:, 0].clamp_(0, 1)
    return y + z


@pytest.mark.parametrize("how", [under_no_grad, of_detached])
def test_what_autograd_does_not_see_is_refused(how):
    """Gradients would be those of the changed values."""
    with pytest.raises(ValueError, match="in place .(mul|clamp)_., under no_grad or through a"):
        check(how)


def test_statistics_that_others_read_are_refused():
    def reads(model, y):
        return model.norm(y) * model.norm.running_var.unsqueeze(1)

    with pytest.raises(ValueError, match="no rule for an argument that is Moved"):
        check(reads)
