"""Modules that run as they are: what torch.export cannot record, or autoddl has no rule for."""

import pytest
import torch
from torch import nn

from autoddl import batchwise, opaque
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.opaque import as_kernel
from autoddl.runtime.torch.trace.trace import trace_with_state
from autoddl.runtime.tracing import checks
from tests.pytorch.models import Decides, Rounds, Spectrum, build
from tests.runtime.random_plans import cluster_of, random_plan

ROWS, WIDTH = 8, 12


def traced(module):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), module, nn.Linear(WIDTH, 5))
    loss = nn.CrossEntropyLoss()
    return trace_with_state(
        model, torch.randn(ROWS, WIDTH), torch.randint(0, 5, (ROWS,)), loss=loss
    )


def opaque_ops(found):
    return [op for op in found.graph.ops if op.kind == "opaque"]


def test_parameters_and_buffers_are_inputs_and_rows_follow_the_batch():
    model, loss, batch = build("as_they_are")
    found = trace_with_state(model, *batch(0), loss=loss)
    names = [op.name for op in opaque_ops(found)]
    calls = ("decides/opaque", "decides/opaque_1", "rounds/opaque", "spectrum/opaque")
    assert sorted(names) == sorted(found.opaque) == sorted((*calls, "loss.each/opaque"))
    first = next(op for op in found.graph.ops if op.name == "decides/opaque")
    assert first.inputs[1:] == ("decides.layer.weight", "decides.layer.bias", "decides.shift")
    assert first.attrs["batchwise"] and len(first.outputs) == 2
    assert {"decides.layer.weight", "spectrum.weight"} <= found.graph.needs_grad
    more = found.graph.with_batch(2 * ROWS)
    assert all(more.tensors[name].spec.shape[0] == 2 * ROWS for name in first.outputs)
    assert all(not m.__dict__.keys() & {"_call_impl", "forward"} for m in model.modules())


class Factors(nn.Module):
    def forward(self, x):
        return torch.linalg.lu_factor(x.reshape(-1, 3, 4)).LU.flatten(1)


@pytest.mark.parametrize("make", [lambda: Decides(WIDTH), Factors, Rounds])
def test_what_is_refused_names_the_way_out(make):
    with pytest.raises(
        ValueError, match=r"autoddl\.batchwise\(module\).*autoddl\.opaque\(module\)"
    ):
        traced(make())


def test_a_parameter_that_no_gradient_reaches_gets_none():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.stopped = (nn.Parameter(torch.ones(WIDTH)) for _ in "12")
            self.unused = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return torch.fft.fft(x * self.used).abs() * self.stopped.detach()

    found = traced(batchwise(Half()))
    assert len(opaque_ops(found)[0].inputs) == 4
    assert {n for n in found.graph.needs_grad if n.startswith("1.")} >= {"1.used"}
    assert not {"1.stopped", "1.unused"} & found.graph.needs_grad


def test_a_module_that_looks_at_values_may_reach_other_parameters_with_others():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.positive, self.negative = (nn.Linear(WIDTH, WIDTH) for _ in "12")

        def forward(self, x):
            return self.positive(x) if float(x.sum()) > -1e9 else self.negative(x)

    found = traced(opaque(Either()))
    assert {"1.positive.weight", "1.negative.weight"} <= found.graph.needs_grad


class Scaled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.inner(x)


class Leaks(nn.Module):
    owner: list[nn.Module]

    def forward(self, x):
        return torch.fft.fft(x * self.owner[0].scale).abs()


class Adds(nn.Module):
    def forward(self, x):
        return x.add_(1)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return x * self.seen


class Sums(nn.Module):
    def forward(self, x):
        return x.sum(0, keepdim=True)


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = batchwise(Times())

    def forward(self, x):
        return self.inner(x, x.shape[0])


class Times(nn.Module):
    def forward(self, x, number):
        return x * number


def leaking():
    inner = batchwise(Leaks())
    outer = Scaled(inner)
    inner.owner = [outer]
    return outer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (leaking, "1.inner reads tensors that it is not given"),
        (lambda: opaque(Adds()), "1 changes argument 0 .*change buffers in place alone"),
        (lambda: opaque(Counts()), "1 changes seen .*change buffers in place alone"),
        (lambda: batchwise(nn.BatchNorm1d(WIDTH)), r"1 changes .*autoddl\.opaque\(module\)"),
        (lambda: batchwise(Sums()), r"1 was declared batch-wise .* \(1, 12\)"),
        (Sized, "1.inner gets a number that follows the batch"),
    ],
)
def test_what_other_devices_would_not_compute_alike_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        traced(make())


def test_running_statistics_move_as_in_torch():
    """Whose kernels tell no version of them; and those of all batches have no other way."""
    torch.manual_seed(0)
    norm, x = nn.BatchNorm1d(WIDTH, momentum=None), torch.randn(ROWS, WIDTH)
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\) has momentum=None.*autoddl\.opaque"):
        traced(norm)
    model, loss = nn.Sequential(nn.Linear(WIDTH, WIDTH), opaque(norm)), nn.MSELoss()
    found = trace_with_state(model, x, x, loss=loss)
    plan = random_plan(found.graph, cluster_of(1, 1), 0)
    trainer = build_trainer(found, plan, lambda p: torch.optim.SGD(p, lr=0.0))
    for scale in (1, 3):
        trainer.step(scale * x, x)
    state = trainer.state_dict()
    for scale in (1, 3):
        model(scale * x)
    for name, wanted in model.state_dict().items():
        assert torch.allclose(state[name], wanted), name


def test_a_model_without_memory_may_have_those_that_look_at_no_values():
    with torch.device("meta"):
        assert opaque_ops(traced(batchwise(Spectrum(WIDTH))))
        with pytest.raises(ValueError, match="on the meta device, .* looks at values"):
            traced(batchwise(Decides(WIDTH)))


def test_it_runs_in_the_mode_of_the_trace_on_the_tensors_that_it_is_given():
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
    inner[0].weight = nn.Parameter(torch.eye(WIDTH))
    model = nn.Sequential(batchwise(inner), nn.Linear(WIDTH, 5)).eval()
    found = trace_with_state(model, torch.randn(ROWS, WIDTH))
    (call,) = found.opaque.values()
    run = as_kernel(call)
    given = [torch.ones(4, WIDTH), 2 * torch.eye(WIDTH), torch.zeros(WIDTH)]
    before = torch.random.get_rng_state()
    (one,), (same,), (other,) = (run(given, True, seed) for seed in (1, 1, 2))
    assert one.unique().tolist() == [0.0, 4.0] and torch.equal(one, same)
    assert not torch.equal(one, other)
    assert run(given, False, 1)[0].unique().tolist() == [2.0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(inner[0].weight, torch.eye(WIDTH)) and not inner.training


def test_opaque_modules_are_looked_for_once_and_not_for_each_module(monkeypatch):
    own, asked = checks.is_opaque, []
    monkeypatch.setattr(checks, "is_opaque", lambda module: (asked.append(module), own(module))[1])
    checks.check_ready(nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(20))))
    assert len(asked) == 21
