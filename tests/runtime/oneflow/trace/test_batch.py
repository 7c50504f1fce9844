"""Graphs of other batch sizes equal traces at those sizes, or say that they cannot be had."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

from autoddl.runtime.oneflow.models.alexnet import alexnet_small
from autoddl.runtime.oneflow.models.dlrm import dlrm_small
from autoddl.runtime.oneflow.models.gpt import gpt_small
from autoddl.runtime.oneflow.models.vgg import vgg13_small
from autoddl.runtime.oneflow.trace.trace import trace
from tests.runtime.oneflow.trace import toys

ENTRIES = [alexnet_small, dlrm_small, gpt_small, vgg13_small]


@pytest.mark.parametrize("entry", ENTRIES)
def test_models(entry):
    model, example, loss = entry(batch=4)
    graph = trace(model, *example, loss=loss)
    assert graph.batch == 4
    _, larger, _ = entry(batch=12)
    assert graph.with_batch(12).fingerprint == trace(model, *larger, loss=loss).fingerprint
    _, single, _ = entry(batch=1)
    assert graph.with_batch(1).fingerprint == trace(model, *single, loss=loss).fingerprint


@pytest.mark.parametrize("model", [toys.Mlp, toys.Norms, toys.Tied, toys.InPlace])
def test_toys(model):
    module = model()
    graph = trace(module, *toys.example(6), loss=F.cross_entropy)
    for batch in (2, 18):
        traced = trace(module, *toys.example(batch), loss=F.cross_entropy)
        assert graph.with_batch(batch).fingerprint == traced.fingerprint


class Bare(nn.Module):
    """A forward function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_a_mean_is_inversely_proportional_to_the_batch():
    graph = trace(Bare(lambda x: x.mean(dim=0)), toys.rows(4))
    (scale,) = [op for op in graph.ops if op.kind == "scalar_mul"]
    assert scale.batch_attrs == {"operand": (-1,)} and scale.attrs == {"operand": 0.25}
    (scale,) = [op for op in graph.with_batch(8).ops if op.kind == "scalar_mul"]
    assert scale.attrs == {"operand": 0.125}


def test_merged_and_sliced_batches_scale():
    graph = trace(Bare(lambda x: x.reshape(-1, 2)[: 2 * x.shape[0]]), toys.rows(4))
    slices = [op for op in graph.ops if op.kind == "slice"]
    assert slices[0].batch_attrs == {"stop": (1, 0)}
    assert graph.tensors[graph.outputs[0]].batch_dims == (0,)
    assert graph.with_batch(2).tensors[graph.outputs[0]].spec.shape == (4, 2)


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x: flow.cat([x, flow.ones(1, 8)]), "one row more than the batch"),
        (lambda x: flow.relu(x) if x.shape[0] < 6 else x, "other operators"),
        (lambda x: x * x.shape[0] ** 2, "a square of the batch"),
        (lambda x: x * flow.tensor(np.array([x.shape[0]], np.float32)), "a captured value"),
        (lambda x: x + flow.ones(4, 8), "a fixed batch"),
        (lambda x: x.reshape(2, 2, 8), "a fixed shape"),
    ],
)
def test_models_that_know_their_batch_cannot_be_rebatched(function, why):
    graph = trace(Bare(function), toys.rows(4))
    assert graph.batch == 0, why
    assert all(not op.batch_attrs for op in graph.ops)
    assert all(not tensor.batch_dims for tensor in graph.tensors.values())
    with pytest.raises(ValueError, match="batch"):
        graph.with_batch(2)


def test_examples_without_a_common_dim_0_cannot_be_rebatched():
    both = Bare(lambda x, y: flow.matmul(x, y))
    assert trace(both, toys.rows(4, 8), toys.rows(8, 3)).batch == 0
    assert trace(Bare(lambda x, y: x * y), toys.rows(4, 8), flow.tensor(2.0)).batch == 0


def test_a_batch_of_one_is_told_from_a_broadcast_dim():
    model = Bare(lambda x: x.expand(x.shape[0], 8) * flow.ones(1, 8).expand(x.shape[0], 8))
    graph, twice = trace(model, toys.rows(1)), trace(model, toys.rows(2))
    assert [op.kind for op in graph.ops].count("expand") == 1
    assert graph.with_batch(2).fingerprint == twice.fingerprint


def test_the_examples_values_and_memory_do_not_matter():
    blank = flow.zeros(1).expand(1 << 20, 8)
    graph = trace(nn.Linear(8, 5), blank)
    assert graph.batch == 1 << 20
    assert graph.with_batch(4).fingerprint == trace(nn.Linear(8, 5), toys.rows(4)).fingerprint
