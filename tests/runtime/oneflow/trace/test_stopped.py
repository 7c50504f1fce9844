"""Gradients that a model stops are stopped by an operator."""

import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

from autoddl.runtime.oneflow.trace.trace import trace_with_state
from tests.runtime.oneflow.trace import toys
from tests.runtime.oneflow.trace.evaluate import assert_same_training


class Adversary(nn.Module):
    """A GAN's discriminator on made-up rows, whose maker is not to learn from it; and EMA-like use
    of a weight."""

    def __init__(self):
        super().__init__()
        self.make, self.judge = toys.Mlp(), nn.Linear(toys.CLASSES, toys.CLASSES)

    def forward(self, x):
        made = self.make(x)
        return self.judge(made.detach()) + F.linear(made, self.judge.weight.detach())


@pytest.mark.parametrize("make", [toys.Stopped, Adversary])
@pytest.mark.filterwarnings("error::autoddl.runtime.traced.OpaqueWarning")
def test_stopped_gradients_stay_stopped(make):
    flow.manual_seed(0)
    model = make()
    traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy)
    stops = [op for op in traced.graph.ops if op.kind == "stop_gradient"]
    assert stops and not any(name in traced.graph.needs_grad for op in stops for name in op.outputs)
    assert_same_training(traced, model, toys.example(), F.cross_entropy)
    larger = trace_with_state(model, *toys.example(8), loss=F.cross_entropy)
    assert traced.graph.with_batch(8).fingerprint == larger.graph.fingerprint


def test_where_no_gradient_flows_none_is_stopped():
    traced = trace_with_state(toys.NeedlesslyStopped(), *toys.example(), loss=F.cross_entropy)
    assert not any(op.kind == "stop_gradient" for op in traced.graph.ops)
