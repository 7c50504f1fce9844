"""What changes would bring, where the plan is held fixed."""

from dataclasses import replace

import pytest

from autoddl.cluster.link import GroupLine
from autoddl.cluster.spec import Cluster
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from autoddl.plans.report.changes import (
    LINKS,
    Change,
    changes,
    repeated,
    same_plan,
    with_faster,
)
from autoddl.plans.report.why import why
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.plans.example import STAGED

MODEL = residual(2, 512, 1024)


def test_links_of_twice_the_bandwidth_halve_what_messages_do_not_take():
    where = cluster("laptop", 2, 2)
    instant = {
        name: replace(getattr(where, name), alpha_s=0.0, call_s=0.0) for name in ("inter", "intra")
    }
    plan = find_plan(MODEL, replace(where, **instant), PlanOptions(overlap=False))
    before = figures(plan).cost
    assert before.inter_s.total > 0 and before.intra_s.total > 0
    after = {change.what: figures(change.plan).cost for change in same_plan(plan) if change.plan}
    faster = after[LINKS["inter"]]
    assert faster.inter_s.total == pytest.approx(before.inter_s.total / 2)
    assert faster.intra_s.total == before.intra_s.total
    faster = after[LINKS["intra"]]
    assert faster.intra_s.total == pytest.approx(before.intra_s.total / 2)
    assert faster.inter_s.total == before.inter_s.total


def test_measured_lines_are_of_the_links_that_their_groups_cross():
    lines = (GroupLine("all_gather", 2, 1, 2, 1.0, 4.0), GroupLine("all_gather", 1, 2, 1, 1.0, 4.0))
    where = replace(cluster("laptop", 2, 2), lines=lines)
    assert [line.s_per_byte for line in with_faster(where, "inter").lines] == [2.0, 4.0]
    assert [line.s_per_byte for line in with_faster(where, "intra").lines] == [4.0, 2.0]


def test_hosts_with_links_of_their_own_have_them_faster_too():
    where = Cluster.load("hap_64")
    (old,), (new,) = (
        [group.intra for group in machine.groups if group.intra is not None]
        for machine in (where, with_faster(where, "intra"))
    )
    assert new.beta_s_per_byte == old.beta_s_per_byte / 2
    assert with_faster(where, "inter").groups == where.groups  # which all have the machine's


def test_links_that_carry_nothing_are_left_out():
    assert not list(same_plan(find_plan(mlp(8, (16, 16)), cluster("laptop", 2, 2))))
    assert len(list(same_plan(STAGED))) == 2


def test_work_that_is_done_again_is_counted_and_named():
    alike = find_plan(mlp(8, (16, 16)), cluster("laptop", 2, 2))
    assert repeated(alike) == pytest.approx(0.75)
    (told,) = [f.value for f in why(alike).figures if f.key == "repeated"]
    assert str(told).startswith("4 devices each compute the same of fc0 (75% of all computation")
    divided = find_plan(mlp(65536, (64, 64, 64)), cluster("piz_daint", 4, 1))
    assert repeated(divided) == 0.0
    assert not [f.value for f in why(divided).figures if f.key == "repeated" and f.value]


def test_rows_say_how_they_were_computed():
    serial = find_plan(MODEL, cluster("piz_daint", 2, 2), PlanOptions(overlap=False))
    assert all(row["speed"] > 1 for row in report(serial).to_json()["changes"])
    plan = find_plan(MODEL, cluster("piz_daint", 2, 2))
    rows = report(plan).to_json()["changes"]
    assert [row["change"] for row in rows] == list(LINKS.values())
    for row in rows:
        assert row["how"] == "the same plan" and row["speed"] > 1 - 1e-9
        assert row["speed"] == pytest.approx(figures(plan).iteration_s / row["iteration_s"])


def test_a_change_for_which_no_new_plan_is_faster_stands_there_once():
    first, *_ = same = list(same_plan(STAGED))
    rows = changes(STAGED, [first]).rows
    assert {row["change"] for row in rows} == {change.what for change in same}
    assert len(rows) == len(same)
    new = Change(first.what, first.plan, is_new=True)
    assert len(changes(STAGED, [new]).rows) == len(same) + 1
