"""Every kernel repeats OneFlow's own operator, on one device: values and gradients."""

import numpy as np
import oneflow as flow
import pytest

from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.sbp.signature import RULES
from tests.runtime.oneflow.kernels.cases import CASES
from tests.runtime.random_plans import cluster_of, random_plan

CLUSTER = cluster_of(1, 1)
UNUSED = np.zeros(17, np.int64)  # a model has an input, and no batch here
PYTORCH = {"batched", "fft"}  # what OneFlow has no functions for
SOURCES = {"input", "param", "buffer", "loss", "stage_input", "stage_output"}
# proven elsewhere: they need a module's state, or randomness
ELSEWHERE = {
    "normalization", "dropout", "opaque", "fork", "identity", "layer_norm", "rms_norm",
    "reduce_mean", "by_mode", "stop_gradient", "uniform", "uniform_int", "normal", "exponential",
    "bernoulli", "randperm", "attention", "grouped_matmul",
}  # fmt: skip


class Function(flow.nn.Module):
    """A function as a module; its float arguments are parameters or buffers, the others inputs."""

    def __init__(self, case):
        super().__init__()
        self.function = case.function
        self.places = []
        for number, value in enumerate(case.inputs):
            if value.dtype == np.float32:
                tensor = flow.tensor(value)
                if number in case.constant:
                    self.register_buffer(f"p{number}", tensor)
                else:
                    self.register_parameter(f"p{number}", flow.nn.Parameter(tensor))
                self.places.append(f"p{number}")
            else:
                self.places.append(None)

    def forward(self, unused, *rest):
        rest = list(rest)
        return self.function(*(getattr(self, p) if p else rest.pop(0) for p in self.places))


def weighted(out, weight):
    """A scalar in which every element has a weight of its own."""
    return (out.to(flow.float32) * weight).sum()


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c.kind}" for i, c in enumerate(CASES)])
def test_kernel_repeats_oneflow(case):
    model = Function(case)
    rest = [flow.tensor(v) for v in (*case.inputs, UNUSED) if v.dtype != np.float32]
    rest = [rest[-1], *rest[:-1]]
    expected = model(*rest)
    weight = flow.tensor(
        np.random.default_rng(0).standard_normal(tuple(expected.shape)).astype(np.float32)
    )
    if not expected.requires_grad:
        # train something beside it, or there would be no step to take
        model.anchor = flow.nn.Parameter(flow.ones(1))
        function = model.function
        model.function = lambda *a: function(*a).to(flow.float32) * model.anchor
    traced = trace_with_state(model, *rest, weight, loss=weighted, known=lambda kind: True)
    assert case.kind in {op.kind for op in traced.graph.ops}
    trainer = build_trainer(
        traced, random_plan(traced.graph, CLUSTER, 0), lambda p: flow.optim.SGD(p, lr=0.0)
    )
    loss = trainer.step(*rest, weight)
    eager = weighted(model(*rest), weight)
    eager.backward()
    np.testing.assert_allclose(float(loss), float(eager), rtol=1e-5, atol=1e-6)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            got = trainer.parameters()[name].grad
            np.testing.assert_allclose(got.numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-6)
    got = trainer.eval_step(*rest).numpy()
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_kernel_and_a_case():
    assert RULES.keys() - KERNELS.keys() <= SOURCES | PYTORCH
    assert KERNELS.keys() <= RULES.keys()
    assert KERNELS.keys() - ELSEWHERE <= {case.kind for case in CASES}
