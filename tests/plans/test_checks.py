import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.planner.test_shares import unlike
from tests.plans.example import MLP, MODEL, PLAN, STAGED


def changed(plan: Plan, **fields):
    """The file's object with `fields` changed in the first stage."""
    data = plan.to_json()
    data["stages"][0] |= fields
    return data


def test_a_path_that_leads_elsewhere_is_found():
    data = PLAN.to_json()
    edge = next(e for e in data["stages"][0]["edges"] if e[2])
    edge[2] = []
    with pytest.raises(ValueError, match="inconsistent"):
        Plan.from_json(data)


def edited(edit: Callable[[dict[str, Any], list[Any]], Any]):
    """The file's object with the first stage's first matmul and edges edited."""
    data = PLAN.to_json()
    stage = data["stages"][0]
    edit(stage["ops"]["block0.fc1/matmul"], stage["edges"])
    return data


def all_of(op: dict[str, Any], placement: str) -> None:
    for side in ("ins", "outs", "grad_outs", "grad_ins"):
        op[side] = [nd and placement for nd in op[side]]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda op, _: all_of(op, "(P, P)"), "has no signature P, P -> P ; P -> -, P"),
        (lambda op, _: all_of(op, "(S0, S0)"), "has no signature S0, S0 -> S0"),
        (lambda op, _: op["grad_ins"].__setitem__(1, None), "gradients are not those"),
        (lambda op, _: op["ins"].pop(), "it has 2 inputs and 1 outputs"),
        (lambda op, _: op["ins"].__setitem__(0, "(B, B, B)"), "is not for 2 axes"),
        (lambda op, _: op.__setitem__("inner_axes", [0]), "on axis 0 it has no signature"),
        (lambda _, edges: edges.append(["block0.fc1/matmul", 7, [], []]), "there is none"),
        (lambda _, edges: edges.append(["nothing", 0, [], []]), "there is none"),
        (lambda _, edges: edges[0].__setitem__(slice(4, 5), [9]), "split as in ZeRO 9"),
    ],
)
def test_placements_that_no_rule_allows_are_refused(edit, reason):
    with pytest.raises(ValueError, match=reason):
        Plan.from_json(edited(edit))


@pytest.mark.parametrize(("plan", "graph"), [(PLAN, MODEL), (STAGED, MLP)])
def test_another_model_or_cluster_is_refused(plan: Plan, graph):
    plan.check_model(graph)
    for other in (residual(3, 512, 1024), mlp(16, (32, 64, 64, 32))):
        with pytest.raises(ValueError, match="another model"):
            plan.check_model(other)
    plan.check_cluster(cluster("laptop", 2, 2))
    with pytest.raises(ValueError, match="with_shape"):
        plan.check_cluster(cluster("piz_daint", 4, 1))


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([["nothing"]], "no operator"),
        ([["block0.fc1.weight"]], "no operator"),
        ([["block0.fc1/matmul"], ["block0.fc1/matmul"]], "two blocks"),
    ],
)
def test_blocks_of_unknown_or_repeated_operators_are_refused(blocks, reason):
    with pytest.raises(ValueError, match=reason):
        Plan.from_json(changed(PLAN, recomputed=blocks))


def test_a_plan_for_another_order_of_hosts_is_refused():
    where = unlike(1, 2)
    plan = find_plan(mlp(8, (4, 4)), where, PlanOptions(baselines=False))
    plan.check_cluster(where)
    plan.check_cluster(cluster("laptop", 3, 1))
    turned = dataclasses.replace(where, groups=where.groups[::-1])
    with pytest.raises(ValueError, match="in the order 1 x fast, 2 x slow, .* has 2 x slow, 1 x"):
        plan.check_cluster(turned)


def test_stages_that_are_not_the_whole_model_on_all_devices_are_refused():
    data = STAGED.to_json()
    for change, message in (
        ({"cut": [*data["cut"], []]}, r"are not the \d layers in order"),
        ({"chunks": 3}, "2 parts are not 3 on each stage"),
        ({"cluster": {**data["cluster"], "nodes": 3}}, "every device of laptop 3x2"),
    ):
        with pytest.raises(ValueError, match=message):
            Plan.from_json({**data, **change})
    with pytest.raises(ValueError, match="places no operator"):
        Plan.from_json(changed(STAGED, ops={}))


def test_another_number_of_micro_batches_in_flight_than_the_schedule_has_is_refused():
    assert [stage.in_flight for stage in STAGED.stages] == [2, 1]
    with pytest.raises(ValueError, match=r"its schedule has \(2, 1\)"):
        Plan.from_json(changed(STAGED, in_flight=1))
