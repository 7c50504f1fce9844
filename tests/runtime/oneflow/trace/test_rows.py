"""Opaque submodules that are split along the batch without being declared so."""

import warnings

import oneflow as flow
import oneflow.nn as nn
import pytest

from autoddl.runtime.oneflow.trace.opaque import OpaqueWarning
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from tests.runtime.oneflow.trace.evaluate import run_graph


class Around(nn.Module):
    """Layers around a function in a submodule of its own."""

    def __init__(self, function, inner=None):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 5)
        self.within = Within(function, inner)

    def forward(self, x):
        return self.last(self.within(self.first(x)))


class Within(nn.Module):
    def __init__(self, function, inner):
        super().__init__()
        self.function, self.inner = function, inner
        self.register_buffer("seen", flow.zeros(6))

    def forward(self, x):
        return self.function(x) if self.inner is None else self.function(x, self.inner)


def drop_rows(x):
    return x / 0.5 * (0.5 + flow.rand(x.shape[0], 1)).floor()


def noisy(x):
    return x + flow.randn(*x.shape) * 0.1


def straight_through(x):
    return x + (x.round() - x).detach()


def flipped(x):
    kept = flow.bernoulli(flow.full([x.shape[0], 1], 0.5))
    return x * kept + nn.functional.dropout(x, 0.5)


def cut(x):
    return flow.cat([x[:, :3], drop_rows(x[:, 3:])], dim=1).reshape(x.shape[0], 2, 3).flatten(1)


def one_draw_for_all(x):
    return x * flow.rand(1, 1)


def one_order_for_all(x):
    return drop_rows(x)[:, flow.randperm(6)]


def mean_of_rows(x):
    return drop_rows(x) - x.mean(dim=0, keepdim=True)


def divided_by_rows(x):
    return drop_rows(x) / x.shape[0]


def numbered(x):
    return drop_rows(x) + flow.arange(x.shape[0]).to(flow.float32).unsqueeze(1)


def turned(x):
    return drop_rows(x).transpose(0, 1).softmax(-1).transpose(0, 1)


def kind_of(model):
    """Whether the submodule is split, and what was told of it."""
    example = flow.randn(4, 8), flow.arange(4)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", OpaqueWarning)
        traced = trace_with_state(model, *example, loss=nn.CrossEntropyLoss())
    (op,) = (op for op in traced.graph.ops if op.kind == "opaque")
    assert op.module == "within"
    texts = [str(w.message) for w in told if w.category is OpaqueWarning]
    return op.attrs["batchwise"], texts


@pytest.mark.parametrize("function", [drop_rows, noisy, straight_through, flipped, cut])
def test_what_keeps_rows_apart_is_split(function):
    assert kind_of(Around(function)) == (True, [])


@pytest.mark.parametrize(
    "function",
    [one_draw_for_all, one_order_for_all, mean_of_rows, divided_by_rows, numbered, turned],
)
def test_what_ties_rows_together_is_not(function):
    is_split, (told,) = kind_of(Around(function))
    assert not is_split and "within runs as one replicated operator" in told


def test_parameters_are_told_of():
    is_split, (told,) = kind_of(Around(lambda x, layer: drop_rows(layer(x)), nn.Linear(6, 6)))
    assert is_split and "split along the batch" in told and "parameters" in told


def test_statistics_of_the_batch_are_not_split():
    is_split, _ = kind_of(Around(lambda x, norm: drop_rows(norm(x)), nn.BatchNorm1d(6)))
    assert not is_split


def test_what_changes_its_state_is_not_split():
    model = Around(drop_rows)

    def remember(x):
        model.within.seen = model.within.seen + 1.0
        return drop_rows(x)

    model.within.function = remember
    assert not kind_of(model)[0]


def test_numbers_repeated_keep_their_dtype():
    class Repeated(nn.Module):
        def forward(self, x):
            return x.repeat_interleave(2, dim=1)

    x = flow.randn(4, 3)
    result, _ = run_graph(trace_with_state(Repeated(), x), (x,))
    assert result.tolist() == x.repeat_interleave(2, dim=1).tolist()
