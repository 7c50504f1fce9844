"""What a forward pass of a torch module leaves in Python for the next one."""

import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

from autoddl.runtime.torch.trace.trace import trace_with_state  # noqa: E402
from tests.pytorch.models import traced, trained  # noqa: E402


class Keeps(nn.Linear):
    """`keep(model, y)` gives what the pass returns."""

    def __init__(self, keep):
        super().__init__(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.keep, self.steps, self.hidden, self.seen = keep, 0, (torch.zeros(6),), []

    def forward(self, x):
        return self.keep(self, super().forward(x))


def counts(model, y):
    model.steps += 1
    return y * model.steps


def assigns(model, y):
    with torch.no_grad():
        model.mean = model.mean * 0.9 + y.mean(0)
    return y


def remembers(model, y):
    y = y + model.hidden[0]
    model.hidden = (y.detach(),)
    return y


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (counts, "keeps steps from one step to the next"),
        (remembers, "keeps hidden from one step to the next"),
        (assigns, "changes the buffer mean in its forward pass"),
        (lambda _, y: y * random.random(), "draws numbers from Python's random"),
        (lambda _, y: y * float(np.random.rand()), "draws numbers from Python's random"),
    ],
)
def test_what_a_pass_leaves_for_the_next_one_is_refused(keep, why):
    model = Keeps(keep)
    before, state = {**vars(model)}, random.getstate()
    with pytest.raises(ValueError, match=why):
        traced(model, 4, 6)
    assert vars(model) == before and random.getstate() == state


def test_what_is_made_once_or_only_looked_at_may_be_kept():
    def keep(model, y):
        if getattr(model, "mask", None) is None or model.mask.shape[0] != y.shape[1]:
            model.mask = torch.ones(6, 6).tril()
        model.hidden, model.loss = (y.detach(),), y.square().mean()
        model.seen.append(y)
        return y @ model.mask

    model = Keeps(keep)
    before = {**vars(model)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trace_with_state(
            model, torch.ones(4, 6), torch.ones(4, 6), loss=lambda y, _: y.mean() + model.loss
        )
    assert trained(found) == {"weight", "bias"}
    assert vars(model) == before and not model.seen


def test_hooks_that_the_first_call_registers_are_registered_once():
    """As transformers does where hidden states are asked for (LLaVA, output_hidden_states)."""
    seen = []

    def keep(model, y):
        if not getattr(model, "watched", False):
            model.last.register_forward_hook(lambda _, given, made: seen.append(made))
            model.watched = True
        seen.clear()
        y = model.last(y)
        (found,) = seen
        return y + found

    model = Keeps(keep)
    model.last = nn.Linear(6, 6)
    traced(model, 4, 6)
    model(torch.ones(4, 6))
    assert len(seen) == 1


def test_a_lazy_module_is_to_be_called_first():
    with pytest.raises(ValueError, match="0.weight has no shape yet.*call the model once"):
        traced(nn.Sequential(nn.LazyLinear(6)), 4, 6)
