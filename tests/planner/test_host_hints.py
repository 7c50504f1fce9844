"""Hints that leave a host as little as possible: which shares they leave, and what is refused."""

import dataclasses
import itertools
import math

import pytest

from autoddl.graph.hints import as_hints
from autoddl.planner.asked import working
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.tools.suggest import planned_anew
from tests.clusters import cluster
from tests.graphs import mlp
from tests.planner.test_shares import WIDE, unlike

FOUR = cluster("piz_daint", 4, 1)
MLP = mlp(512, (1024, 2048, 2048, 1024))
LAST = {"host 3": "least"}


def planned(graph, where, hints, **options) -> Plan:
    asked = {"baselines": False, "overlap": False, **options}
    plan = find_plan(graph, where, PlanOptions(hints=hints, **asked))
    plan.verify()
    assert Plan.loads(plan.dumps()) == plan and plan.hints == as_hints(hints)
    return plan


def seconds(plan: Plan) -> float:
    return figures(plan).iteration_s


def test_a_host_has_no_share_and_the_plan_says_what_that_costs():
    free = planned(MLP, FOUR, {})
    for host in (0, 3):
        plan = planned(MLP, FOUR, {f"host {host}": "least"})
        shares = plan.stage.shares
        assert [n for n, share in enumerate(shares) if not share] == [host]
        assert max(shares) <= 1.5 * min(share for share in shares if share)  # they are alike
        assert plan.unhinted_s == seconds(free) < seconds(plan)
    with_module = planned(MLP, FOUR, {**LAST, "fc1": "split(4)"})
    (product,) = (op for op in MLP.ops if op.module == "fc1" and "matmul" in op.kind)
    assert with_module.stage.ops[product.name].ins[1].split_dims()
    assert with_module.stage.shares[3] == 0 and with_module.unhinted_s == seconds(free)


def test_widths_that_the_hosts_left_do_not_divide_are_split_all_the_same():
    """3 x 256 rows, but 1024 columns: at equal shares of three hosts it takes 1.8 times as long."""
    graph = mlp(768, (1024, 4096, 4096, 1024))
    even = planned(graph, FOUR, {}, shares="1:1:1:0")
    assert seconds(planned(graph, FOUR, LAST)) < seconds(even) / 1.7


@pytest.mark.parametrize(
    ("host", "units"), [(3, 8), *(pytest.param(n, 16, marks=pytest.mark.full) for n in range(4))]
)
def test_on_unlike_hosts_the_others_shares_against_all(host, units):
    """Two fast hosts and two slow ones, of all shares of so many units."""
    where, found = unlike(2, 2, link=0.3), []
    for inner in itertools.combinations(range(1, units), 2):
        own = [b - a for a, b in itertools.pairwise((0, *inner, units))]
        shares = ":".join(map(str, [*own[:host], 0, *own[host:]]))
        if units > 8 or own[0] == own[1]:
            found.append(seconds(planned(WIDE, where, {}, shares=shares)))
    plan = planned(WIDE, where, {f"host {host}": "least"})
    assert plan.stage.shares[host] == 0 and seconds(plan) <= 1.01 * min(found)


def test_runs_are_as_long_as_hints_allow():
    def runs(hosts, *idle, where=None):
        options = PlanOptions(hints={f"host {n}": "least" for n in idle})
        found = working(where or cluster("piz_daint", hosts, 2), options)
        assert found is not None and found.cluster.nodes == hosts - len(idle)
        return found.shares(())

    assert runs(8, 6, 7) == (1, 1, 1, 0)
    assert runs(8, 7) == (1, 1, 1, 1, 1, 1, 1, 0)
    assert runs(4, 2, 3) == (1, 1, 0, 0)  # in two runs one alone would have a share
    assert runs(8, 0, 1, where=unlike(6, 2)) == (0, 1, 1, 1)
    assert runs(4, 1, where=unlike(2, 2)) == (1, 0, 1, 1)


def test_the_file_is_held_to_the_hint():
    data = planned(MLP, FOUR, LAST).to_json()
    for other, says in (("host 2", "does not obey the hint least for 'host 2'"),
                        ("host 4", "'host 4'.*names no host: they are 0 to 3")):  # fmt: skip
        data["hints"][0][0] = other
        with pytest.raises(ValueError, match=says):
            Plan.from_json(data)
    staged = find_plan(MLP, FOUR, PlanOptions(stages=2, micro_batches=4, baselines=False))
    with pytest.raises(ValueError, match="does not obey the hint least for 'host 3'"):
        dataclasses.replace(staged, hints=as_hints(LAST)).verify()


def test_shares_that_obey_are_taken_as_they_are():
    plan = planned(MLP, FOUR, LAST, shares="2:1:1:0")
    assert plan.stage.shares == (2, 1, 1, 0) and plan.unhinted_s == seconds(plan)


@pytest.mark.parametrize(
    ("hints", "options", "says"),
    [
        (LAST, {"shares": "2:1:1:1"}, "'host 3'.*the shares 2:1:1:1 contradict each other"),
        (LAST, {"shares": "even"}, "'host 3'.*the shares even contradict"),
        ({f"host {n}": "least" for n in range(4)}, {}, "'host 0'.*'host 3'.*leave 0 of 4 hosts"),
        ({f"host {n}": "least" for n in range(3)}, {}, "'host 0'.*'host 2'.*leave 1 of 4 hosts"),
        ({"host 4": "least"}, {}, "'host 4'.*names no host: they are 0 to 3"),
        (LAST, {"stages": 2}, "'host 3'.*each host of a pipeline computes its stage"),
        (LAST, {"stages": "auto"}, "'host 3'.*leave out the hint or the stages"),
    ],
)
def test_what_cannot_hold_is_refused(hints, options, says):
    with pytest.raises(ValueError, match=says):
        find_plan(MLP, FOUR, PlanOptions(hints=hints, baselines=False, **options))


@pytest.mark.full
def test_known_schemes_obey_and_without_the_hint_is_suggested():
    plan = planned(MLP, FOUR, LAST, baselines=True, overlap=True)
    assert plan.baselines and not any(rival.breaks for rival in plan.baselines)
    assert all(seconds(plan) <= (rival.iteration_s or math.inf) for rival in plan.baselines)
    first = planned_anew(plan)[0]
    assert first.what == "without least for 'host 3' (hints)" and first.plan is not None
    assert seconds(first.plan) == plan.unhinted_s
