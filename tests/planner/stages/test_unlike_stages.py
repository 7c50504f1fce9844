"""Stages on hosts of two kinds, and partitions that turn out otherwise than they were told."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.stages import in_stages
from autoddl.planner.stages.task import Learned, Shape, Stage
from autoddl.plans import Plan
from autoddl.plans.stage import StagePrice
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.mesh import SubMesh
from tests.graphs import mlp
from tests.planner.test_shares import seconds, unlike

TWO = PlanOptions(stages=2, baselines=False, overlap=False)


def with_memory(where: Cluster, fast_bytes: int, slow_bytes: int) -> Cluster:
    slow = dataclasses.replace(where.device_of(1), memory_bytes=slow_bytes)
    groups = where.groups[0], dataclasses.replace(where.groups[1], device=slow)
    fast = dataclasses.replace(where.device, memory_bytes=fast_bytes)
    return dataclasses.replace(where, device=fast, groups=groups)


def fits(plan: Plan, where: Cluster) -> bool:
    """Each kind of devices of each stage has the memory that it needs."""
    return all(
        needed <= view.times * stage.memory_limit_bytes
        for stage in plan.stages
        for view, needed in stage_figures(stage).needed_by_kind
    )


# Of random ones those whose best shares are far from the speeds of the devices: even ones on slow
# links, or more for those with more memory.
DIVIDED = {
    "even": (
        mlp(512, (1024, 1024, 1024, 256)),
        with_memory(unlike(3, 1, factor=1.3, link=0.933), 21_866_993, 43_733_986),
    ),
    "speed": (
        mlp(512, (1024, 1024, 1024, 1024)),
        with_memory(unlike(1, 3, factor=3.0, link=4.8), 18_421_695, 36_843_391),
    ),
    "memory": (
        mlp(512, (1024, 256, 256, 256)),
        with_memory(unlike(1, 3, factor=1.3, link=2.428), 2_663_023, 5_326_047),
    ),
}


@pytest.mark.parametrize(
    "graph, where, parts",
    [
        pytest.param(*DIVIDED["speed"], 4, id="speed"),
        *(pytest.param(*DIVIDED[name], 16, id=name, marks=pytest.mark.full) for name in DIVIDED),
    ],
)
def test_a_stage_of_two_kinds_of_hosts_is_divided_as_is_best_for_the_pipeline(
    graph: Graph, where: Cluster, parts: int, monkeypatch: pytest.MonkeyPatch
):
    """Within 1 % of all shares of so many parts, in every partition that is planned."""
    real, mixed = in_stages._on_partition, []

    def on_partition(ranking: Any, chosen: Any, gives_up: bool) -> Any:
        plan = real(ranking, chosen, gives_up)
        if any(stage.shape.beyond and stage.shape.nodes == 2 for stage in chosen.stages):
            mixed.append((ranking, chosen, plan))
        return plan

    monkeypatch.setattr(in_stages, "_on_partition", on_partition)
    plan = find_plan(graph, where, TWO)
    plan.verify()
    assert mixed and fits(plan, where)
    for ranking, chosen, found in mixed:
        every = []
        for units in range(1, parts):
            common = math.gcd(units, parts)
            own = units // common, (parts - units) // common
            own = () if own[0] == own[1] else own

            def at_these(at: Any, *_: Any, own=own) -> tuple[Any, dict[Any, Plan]]:
                plan = at(own, math.inf)
                return own, {} if plan is None else {own: plan}

            monkeypatch.setattr(in_stages, "best_shares", at_these)
            try:
                every.append(real(ranking, chosen, False).seconds)
            except ValueError:  # it does not fit
                continue
        assert found.seconds <= 1.01 * min(every)


def test_stages_of_two_kinds_are_looked_for_where_no_others_fit():
    """Though no device idles; the model had been refused."""
    where = with_memory(unlike(3, 1, factor=1.3, link=0.141), 35_227_289, 35_227_289)
    plan = find_plan(mlp(256, (2048, 1024, 512, 1024, 512)), where, TWO)
    plan.verify()
    assert fits(plan, where)
    assert any(len(set(stage.cluster.runs)) == 2 for stage in plan.stages)


@pytest.mark.full
def test_what_turns_out_not_to_fit_is_not_told_again():
    """Each of the first eight partitions was refused where 90 fit."""
    where = with_memory(unlike(1, 3, factor=1.3, link=1.2), 85_706_845, 171_413_690)
    plan = find_plan(mlp(256, (256, 256, 256, 512, 256, 2048, 2048)), where, TWO)
    plan.verify()
    assert fits(plan, where)


@pytest.mark.parametrize("are_alike", [pytest.param(False, marks=pytest.mark.full), True])
def test_partitions_are_ranked_anew_by_what_transfers_turn_out_to_take(
    are_alike: bool, monkeypatch: pytest.MonkeyPatch
):
    graph, where = mlp(256, (2048, 256, 2048, 2048)), unlike(3, 1, factor=1.8, link=1.278)
    where = with_memory(where, 81_796_693, 40_898_346)
    if are_alike:
        where = dataclasses.replace(where, groups=())
    plan = find_plan(graph, where, TWO)
    plan.verify()
    monkeypatch.setattr(in_stages, "_TRIES", 1)
    assert seconds(plan) < 0.9 * seconds(find_plan(graph, where, TWO))


def stage(first: int, last: int, shape: Shape, transfer_s: float = 0.0) -> Stage:
    place = SubMesh(0, shape.nodes, 0, shape.gpus)
    return Stage(first, last, place, StagePrice(1.0, 2.0), transfer_s, shape)


def test_what_is_known_of_stages_replaces_what_was_told():
    one, two = Shape(1, 2), Shape(2, 2)
    learned = Learned(3)
    learned.refute(1, 3, one, 4, 2)
    too_large = learned.too_large(one, 2, 2)
    assert too_large[:2, 3].all() and not too_large[2, 3] and not too_large[1, 2]
    assert not learned.too_large(one, 8, 2).any()  # smaller micro-batches may fit
    assert not learned.too_large(one, 4, 1).any() and not learned.too_large(two, 4, 2).any()

    learned.note_price(stage(0, 1, one), 4, 2, StagePrice(3.0, 4.0, 5.0, 7.0))
    told = StagePrice(1.0, 1.0, 1.0, 9.0)
    assert learned.price(0, 1, one, 4, 2, told) == StagePrice(3.0, 4.0, 5.0, 9.0)
    assert learned.price(0, 1, one, 4, 1, told) == told
    each, once = learned.times(one, 4, 2, np.ones((3, 4)), np.ones((3, 4)))
    assert each[0, 1] == 7.0 and once[0, 1] == 5.0 and each.sum() == 18 and once.sum() == 16

    learned.note_sent(stage(0, 2, one), two, 4, 6.0, told_s=2.0)
    sent = learned.transfers(one, two, 4, np.ones((4, 4)))
    assert (sent[:2, 2] == 6.0).all() and sent[2, 2] == 1.0 and (sent[:, 1] == 1.0).all()
    assert (learned.transfers(two, two, 4, np.ones((4, 4)))[:2, 2] == 3.0).all()
    learned.note_sent(stage(0, 2, two), two, 4, 1.0, told_s=2.0)  # never faster than told
    assert (learned.transfers(two, one, 4, np.ones((4, 4)))[:2, 2] == 1.0).all()
