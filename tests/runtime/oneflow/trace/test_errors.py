"""What a user is told when a model cannot be traced."""

import random

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest
from oneflow.core.common import data_type_pb2

from autoddl.graph.hints import opaque
from autoddl.runtime.oneflow.trace.job.raw import dtype_name
from autoddl.runtime.oneflow.trace.trace import trace
from tests.runtime.oneflow.trace import toys

VALUE_IS_READ = "A value of a tensor is read there"
SHAPE_BY_VALUES = "The shape of the result depends on values there"


class Failing(nn.Module):
    """A submodule `part` that runs `function`."""

    def __init__(self, function):
        super().__init__()
        self.part = _Part(function)

    def forward(self, x):
        return self.part(x)


class _Part(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: flow.matmul(x, x), r"\(8 vs 4\) in operator matmul"),
        (lambda x: x.reshape(5, 5), r"shape '\(5,5\)' is invalid for input of size 32"),
        (lambda x: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x: x + flow.ones(3, 8), r"shapes \(4, 8\) and \(3, 8\) do not broadcast"),
        (lambda x: F.mse_loss(x, flow.ones(4, 9)), r"\(4, 8\) and \(4, 9\) do not broadcast"),
        (lambda x: flow.maximum(x, flow.ones(3, 1)), "do not broadcast"),
        (lambda x: flow.ones(3, 8) > x, "do not broadcast"),
        (lambda x: flow.logaddexp(x, flow.ones(3, 8)), "do not broadcast"),
        (lambda x: F.triplet_margin_loss(x, x, flow.ones(3, 8)), "do not broadcast"),
        (lambda x: nn.MarginRankingLoss()(x, x, flow.ones(3, 8)), "do not broadcast"),
        (lambda x: nn.PairwiseDistance()(x, flow.ones(3, 8)), "do not broadcast"),
        (lambda x: x.unsqueeze(1) @ flow.ones(3, 8, 1), "batch dims that do not broadcast"),
        (
            lambda x: flow.baddbmm(flow.ones(3, 1, 1), x.unsqueeze(1), x.unsqueeze(2)),
            r"shapes \(3, 1, 1\) and \(4, 1, 8\) and \(4, 8, 1\) do not fit in baddbmm",
        ),
        (lambda x: nn.Conv2d(1, 1, 2)(x.unsqueeze(1)), "have not 4 dims each"),
        (lambda x: nn.ConvTranspose1d(1, 1, 2)(x), r"\(batch, channels, 1 of the window\)"),
    ],
)
def test_a_failing_submodule_is_named(function, message):
    model = Failing(function)
    weight = model.part.linear.weight
    with pytest.raises(ValueError, match=message) as caught:
        trace(model, toys.rows())
    text = str(caught.value)
    assert "submodule 'part' (_Part), called with tensors of shapes (4, 8)" in text
    assert "test_errors.py:" in text and "op_interpreter" not in text
    assert "\x1b" not in text and len(text) < 700
    assert caught.value.__cause__ is not None
    assert model.part.linear.weight is weight and nn.Linear(8, 8)(toys.rows()).is_eager


@pytest.mark.parametrize(
    "function, advice",
    [
        (lambda x: x * x.sum().item(), VALUE_IS_READ),
        (lambda x: x if x.sum() > 0 else -x, VALUE_IS_READ),
        (lambda x: x[: int(x.sum())], VALUE_IS_READ),
        (lambda x: x * x.sum().numpy(), VALUE_IS_READ),
        (lambda x: sum(x for _ in range(x.sum())), VALUE_IS_READ),
        (lambda x: flow.masked_select(x, x > 0), SHAPE_BY_VALUES),
        (lambda x: flow.nonzero(x > 0), SHAPE_BY_VALUES),
        (lambda x: x[x > 0], SHAPE_BY_VALUES),
        (lambda x: flow.unique(x), SHAPE_BY_VALUES),
        (lambda x: flow.bincount(x.argmax(-1)), SHAPE_BY_VALUES),
    ],
)
def test_what_depends_on_values_is_refused_with_a_way_out(function, advice):
    with pytest.raises(ValueError) as caught:
        trace(Failing(function), toys.rows())
    told, way_out = str(caught.value).split("\n")
    assert "submodule 'part' (_Part), called with" in told and "test_errors.py:" in told
    assert way_out.startswith(advice)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_numbers_that_python_or_numpy_draws_are_refused(draw):
    """A layer that is left out at random was there, or was not, in all steps."""
    before = random.getstate()
    with pytest.raises(ValueError, match="draws numbers from Python's random or NumPy's"):
        trace(Failing(lambda x: x if draw() < 0.5 else 2 * x), toys.rows())
    assert random.getstate() == before


class Keeps(nn.Module):
    """`keep(model, y)` may leave something in the module for its next call."""

    def __init__(self, keep):
        super().__init__()
        self.linear, self.keep, self.steps, self.seen = nn.Linear(8, 8), keep, 0, []
        self.hidden = None

    def forward(self, x):
        return self.keep(self, self.linear(x))


def counts(model, y):
    model.steps += 1
    return y * model.steps


def remembers(model, y):
    y = y if model.hidden is None else y + model.hidden[0]
    model.hidden = (y.detach(),)
    return y


@pytest.mark.parametrize(("keep", "what"), [(counts, "steps"), (remembers, "hidden")])
def test_what_a_pass_leaves_for_the_next_one_is_refused(keep, what):
    model = Keeps(keep)
    before = {**vars(model)}
    for whole, name in ((model, what), (nn.Sequential(model), f"0.{what}")):
        with pytest.raises(ValueError, match=f"keeps {name} from one step to the next"):
            trace(whole, toys.rows())
        assert vars(model) == before
    # a part that runs as it is in each step may count
    assert trace(nn.Sequential(nn.Linear(8, 8), opaque(model)), toys.rows()).batch == 4


def test_what_is_made_once_or_only_looked_at_may_be_kept():
    def keep(model, y):
        if not hasattr(model, "mask"):
            model.mask = flow.ones(8)
        model.hidden = (y.detach(),)
        model.seen.append(y)
        return y * model.mask

    model = Keeps(keep)
    assert trace(model, toys.rows()).batch == 4
    assert model.hidden is None and model.seen == [] and not hasattr(model, "mask")


def test_an_error_under_no_grad_is_not_hidden():
    def function(x):
        with flow.no_grad():
            raise KeyError("lost")

    with pytest.raises(ValueError, match="KeyError: 'lost'"):
        trace(Failing(function), toys.rows())
    assert flow.is_grad_enabled()
    assert trace(toys.Mlp(), toys.rows()).batch == 4


@pytest.mark.skipif(flow.cuda.is_available(), reason="says what a host without a GPU says")
@pytest.mark.parametrize(
    "function, what",
    [
        (lambda x: x.cuda(), "cuda"),
        (lambda x: x.to("cuda:0"), "to"),
        (lambda x: x.to(device=flow.device("cuda")), "to"),
        (lambda x: x.type("oneflow.cuda.FloatTensor"), "type"),
        (lambda x: x + flow.tensor([1.0] * 8, device="cuda"), "tensor"),
        (lambda x: x + flow.zeros(8, device="cuda"), "zeros"),
    ],
)
def test_a_gpu_that_is_not_there(function, what):
    with pytest.raises(ValueError, match=f"'part'.* {what} asks for a GPU .*device=x.device"):
        trace(Failing(function), toys.rows())
    assert trace(Failing(lambda x: x + flow.zeros(8, device=x.device)), toys.rows()).ops


def test_the_model_and_the_loss_are_named_too():
    class Root(nn.Module):
        def forward(self, x):
            return x.reshape(5, 5)

    with pytest.raises(ValueError, match=r"the model's own forward \(Root\)"):
        trace(Root(), toys.rows())
    with pytest.raises(ValueError, match="the trace failed in the loss"):
        trace(nn.Linear(8, 5), toys.rows(), toys.labels(3), loss=F.cross_entropy)


@pytest.mark.parametrize(
    "example, loss, message",
    [
        ((toys.rows(), 3), F.cross_entropy, r"example\[1\] is a int; .* be a Tensor"),
        ((toys.rows(),), F.cross_entropy, "the example has 1 tensors; .* followed by the target"),
        ((), None, "the example has 0 tensors"),
        (toys.example(), lambda o, y: o, r"shape \(4, 5\); it must be a scalar.*mean"),
    ],
)
def test_bad_examples_and_losses(example, loss, message):
    with pytest.raises(ValueError, match=message):
        trace(nn.Linear(8, 5), *example, loss=loss)


def test_what_is_no_model_or_no_loss():
    with pytest.raises(ValueError, match="the model is a function, not a oneflow.nn.Module"):
        trace(lambda x: x, toys.rows())
    with pytest.raises(ValueError, match="loss.* gave a float; it must give a scalar"):
        trace(nn.Linear(8, 5), *toys.example(), loss=lambda output, target: 1.0)
    everywhere = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
    with pytest.raises(ValueError, match="weight is a global tensor; give autoddl the plain"):
        trace(nn.Linear(8, 5).to_global(**everywhere), toys.rows())
    with pytest.raises(ValueError, match=r"example\[0\] is a global tensor"):
        trace(nn.Linear(8, 5), toys.rows().to_global(**everywhere))


def test_an_empty_example_is_refused():
    """It would abort the process."""
    with pytest.raises(ValueError, match=r"example\[0\] is empty, of shape \(0, 8\)"):
        trace(nn.Linear(8, 5), flow.ones(0, 8), flow.ones(0, 5), loss=F.mse_loss)


def test_a_loss_without_a_trainable_parameter():
    model = nn.Linear(8, 5)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that needs a gradient"):
        trace(model, *toys.example(), loss=F.cross_entropy)
    assert trace(model, toys.rows()).loss == ""


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        return self.linear(x).detach()


def test_a_loss_that_trains_nothing():
    with pytest.raises(ValueError, match="no gradient flows from the loss.*detached"):
        trace(Detached(), *toys.example(), loss=F.cross_entropy)
    with pytest.raises(ValueError, match="the loss depends on no parameter"):
        trace(nn.Linear(8, 5), toys.rows(), toys.rows(), loss=lambda output, target: target.mean())


def test_a_dtype_that_autoddl_does_not_know():
    assert dtype_name(data_type_pb2.kBFloat16) == "bfloat16"
    with pytest.raises(ValueError, match="dtype kInt16; autoddl knows float64, float32"):
        dtype_name(data_type_pb2.kInt16)
