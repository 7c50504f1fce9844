"""Construction without storage."""

import oneflow as flow
import oneflow.nn as nn
import pytest

from autoddl.runtime.oneflow.trace.job.meta import is_storage_free, shape_only, storage_free
from autoddl.runtime.oneflow.trace.trace import trace
from tests.runtime.oneflow.trace import toys


def test_large_parameters_have_no_storage_and_small_ones_do():
    with storage_free():
        model = nn.Sequential(nn.Embedding(10**9, 512), nn.Linear(512, 10**8), nn.LayerNorm(16))
        made = [flow.zeros(10**6, 10**6), flow.full((10**6, 10**6), 3.0), flow.randn((9999, 9999))]
    weights = [model[0].weight, model[1].weight, model[1].bias]
    assert all(is_storage_free(t) for t in (*weights, *made))
    assert tuple(weights[0].shape) == (10**9, 512) and isinstance(weights[0], nn.Parameter)
    assert not is_storage_free(model[2].weight) and model[2].weight.tolist() == [1.0] * 16
    assert made[1][0, 7].item() == 3.0


def test_everything_is_put_back_even_after_an_error():
    names = [(flow, "Tensor"), (flow, "zeros"), (nn.init, "normal_"), (flow.Tensor, "fill_")]
    before = [getattr(owner, name) for owner, name in names]
    with pytest.raises(KeyError), storage_free():
        assert flow.Tensor is not before[0]
        assert isinstance(flow.ones(2), flow.Tensor)
        raise KeyError
    assert [getattr(owner, name) for owner, name in names] == before
    weight = nn.Linear(100, 100).weight
    assert not is_storage_free(weight) and len(set(weight.numpy().ravel())) > 1


def test_in_place_writes_skip_them():
    with storage_free():
        weight = nn.Parameter(flow.Tensor(10**6, 10**6))
        nn.init.kaiming_uniform_(weight)
        weight.uniform_(-1, 1)
        weight[0] = 1.0
    assert is_storage_free(weight)


def test_the_same_graph_as_with_storage():
    with storage_free():
        free = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 5))
    full = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 5))
    assert is_storage_free(free[0].weight)
    assert trace(free, toys.rows()) == trace(full, toys.rows())


def test_shape_only_has_any_shape_and_dtype():
    for shape in [(), (1,), (2, 3), (10**6, 10**6)]:
        tensor = shape_only(shape, flow.int64)
        assert tuple(tensor.shape) == shape and tensor.dtype == flow.int64
    assert not is_storage_free(shape_only((1,), flow.float32)), "one element is its own storage"
