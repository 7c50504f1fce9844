"""A plan file that somebody changed is refused, or trains as one process does."""

import dataclasses
from collections import Counter

import pytest

from autoddl.plans import Plan
from autoddl.sbp.collectives import Step
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.signature import signatures_of
from tests import graphs
from tests.exactness import numpy_backend
from tests.exactness.changed_plans import changed_file, expected_of, outcome, plans_of
from tests.exactness.test_numpy_backend import MODELS, in_float64
from tests.runtime.random_plans import cluster_of, random_plan

MODELS = {**MODELS, "tied": lambda: graphs.tied(8, 16)}
GOOD = ("refused", "equal")


def check(folder, seeds) -> Counter:
    """What became of the changes of these numbers."""
    graph_of = {name: in_float64(make(), folder / "graph.json") for name, make in MODELS.items()}
    expected = {name: expected_of(graph) for name, graph in graph_of.items()}
    plans = [(name, plan) for name, g in graph_of.items() for plan in plans_of(g).values()]
    found, bad = Counter(), []
    for seed in seeds:
        name, plan = plans[seed % len(plans)]
        what, text = changed_file(plan, seed)
        if text == plan.dumps():
            found["unchanged"] += 1
            continue
        end, why = outcome(text, graph_of[name], expected[name])
        found[end] += 1
        if end not in GOOD:
            bad.append((seed, name, what, end, why))
    assert not bad, bad
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Ranks that wait for each other so long have parted."""
    monkeypatch.setattr(numpy_backend, "PATIENCE_S", 10.0)


def test_changed_plans(tmp_path):
    assert check(tmp_path, range(24))["equal"]


@pytest.mark.full
@pytest.mark.parametrize("part", range(12))
def test_more_changed_plans(tmp_path, part):
    """A thousand that differ from the plan that was changed."""
    found = check(tmp_path, range(1000 + 100 * part, 1100 + 100 * part))
    print(found)
    assert found["equal"] >= 5 and found["refused"] >= 20


def test_plans_that_are_changed_are_good(tmp_path):
    graph = in_float64(MODELS["mlp"](), tmp_path / "graph.json")
    expected = expected_of(graph)
    for name, plan in plans_of(graph).items():
        assert outcome(plan.dumps(), graph, expected) == ("equal", ""), name


MLP = graphs.mlp(8, (16, 32, 8))


def refused(stage, why):
    plan = Plan.on_one_mesh(stage)
    with pytest.raises(ValueError, match=why):
        Plan.loads(plan.dumps())


def whole_plan():
    """Every operator whole on every device."""
    graph = MLP.with_forks()

    def whole(op):
        every = signatures_of(graph.spec(op))
        return [next(s for s in every if {*s.ins, *s.outs} == {B})] * 2

    return random_plan(MLP, cluster_of(2, 2), 0, fixed=whole).stage


def test_a_parameter_without_the_sum_of_its_gradients_is_refused():
    """Each replica would go its own way."""
    stage = whole_plan()
    name = "fc0.weight"
    placed, both = stage.ops[name], NdSbp((P, P))
    ops = {**stage.ops, name: dataclasses.replace(placed, grad_outs=(both,))}
    refused(dataclasses.replace(stage, ops=ops), "places fc0.weight .param. wrongly: on axis 0")


def test_steps_in_an_order_that_no_collective_has_are_refused():
    """Pieces of pieces are gathered from the last axis on."""
    stage = whole_plan()
    name, x = "fc0/matmul", NdSbp((S(0), S(0)))
    (source,) = (op.name for op in stage.graph.ops if op.kind == "input")
    ops = {**stage.ops, source: dataclasses.replace(stage.ops[source], outs=(x,))}
    steps = [Step.between(S(0), B, (axis,)) for axis in (1, 0)]
    good = dataclasses.replace(stage.edges[name, 0], forward=tuple(steps))
    Plan.on_one_mesh(with_edge(stage, ops, good)).verify()
    bad = dataclasses.replace(good, forward=good.forward[::-1])
    refused(with_edge(stage, ops, bad), "is no step from")


def with_edge(stage, ops, edge):
    return dataclasses.replace(stage, ops=ops, edges={**stage.edges, (edge.op, edge.index): edge})
