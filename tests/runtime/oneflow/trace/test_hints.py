"""Hints in a model's own code: around the calls of its submodules."""

import oneflow as flow
import oneflow.nn as nn
import pytest

import autoddl
from tests.clusters import cluster

FOUR = cluster("laptop", 2, 2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 64)

    def forward(self, x):
        with autoddl.replicate():
            features = self.features(x)
        with autoddl.split(4):
            return self.head(features)


class Defaults(Classifier):
    def forward(self, x):
        autoddl.set_default(autoddl.replicate())
        with autoddl.replicate(2), autoddl.split(2, dim=0):
            features = self.features(x)
        return self.head(features)


class Nothing(Classifier):
    def forward(self, x):
        with autoddl.split(4):
            x = x * 2
        return self.head(self.features(x))


def graph_of(model: nn.Module) -> autoddl.Graph:
    batch = flow.zeros(8, 16), flow.zeros(8, 64)
    return autoddl.trace(model, *batch, loss=nn.MSELoss())


def told(graph: autoddl.Graph) -> list[str]:
    return [str(at).partition(" (test_hints.py:")[0] for at in graph.hints]


def test_hints_around_calls_are_in_the_graph_and_in_its_plan():
    model = Classifier()
    graph = graph_of(model)
    assert told(graph) == ["replicate() for 'features'", "split(4) for 'head'"]
    assert autoddl.Graph.from_json(graph.to_json()) == graph
    plan = autoddl.plan(graph, FOUR, baselines=False)
    assert plan.hints == graph.hints
    plan.check_model(graph)  # the plan's own graph has none
    more = autoddl.plan(graph, FOUR, baselines=False, hints={"head.weight": "(S0)"})
    assert [*map(str, more.hints)] == [*map(str, graph.hints), "(S0) for 'head.weight' (hints)"]


def test_a_trace_leaves_nothing_behind():
    model = Defaults()
    assert told(graph_of(model)) == [
        "replicate() for 'default'",
        "replicate(2) for 'features'",
        "split(2, dim=0) for 'features'",
    ]
    model(flow.zeros(8, 16))  # there hints do nothing
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not graph_of(nn.Linear(16, 64)).hints


def test_a_hint_around_no_call_is_refused():
    with pytest.raises(ValueError, match=r"split\(4\).*stands around no call of a submodule"):
        graph_of(Nothing())


def test_a_hint_outside_of_forward_is_refused():
    outside = pytest.raises(ValueError, match=r"test_hints.py:\d+.*stands in no `forward`")
    with outside, autoddl.split(2):
        Classifier()
    with pytest.raises(ValueError, match="stands in no `forward`"):
        autoddl.set_default(autoddl.replicate())
