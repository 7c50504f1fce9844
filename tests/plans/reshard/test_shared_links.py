"""Messages that share links, move by move."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cluster.link import Link
from autoddl.plans.reshard.plan import plan_reshard
from autoddl.plans.reshard.strategies import STRATEGIES, End, Strategy, in_rounds
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import SubMesh
from autoddl.sbp.placement import NdSbp
from benchmarks.table2 import CASES

from .test_reshard import cluster, end, reshardings

INTER, INTRA = Link(0.0, 1.0, transfer_s=0.25), Link(0.0, 0.01, transfer_s=0.0)
MACHINE = replace(cluster(), inter=INTER, intra=INTRA)
ONE = SubMesh(0, 1, 0, 1)


def seconds(source, target, numel, strategy: Strategy = "broadcast", machine=MACHINE):
    return plan_reshard(TensorSpec((numel,)), source, target, machine, strategy=strategy).seconds


def test_one_message_takes_its_latency_and_its_bytes():
    assert seconds(end(ONE, "()"), end(SubMesh(1, 1, 0, 1), "()"), 10) == pytest.approx(40.25)


def test_messages_out_of_one_host_share_its_link():
    """Two halves from two devices of a host to two other hosts: as long as the whole."""
    source, target = end(SubMesh(0, 1, 0, 2), "(S0)"), end(SubMesh(1, 2, 0, 1), "(S0)")
    assert seconds(source, target, 10) == pytest.approx(40.25)


def test_messages_over_different_links_do_not_wait():
    source, target = end(SubMesh(0, 2, 0, 1), "(S0)"), end(SubMesh(2, 2, 0, 1), "(S0)")
    assert seconds(source, target, 10) == pytest.approx(20.25)


@pytest.mark.parametrize(("hosts", "devices"), [(2, 4), (2, 3), (3, 2)])
def test_both_ways_between_hosts_work_at_once_in_a_ring(hosts, devices):
    """Pieces, then size - 1 rounds of one piece over every host's link (and little inside).

    The ring's first round meets the last pieces on a host's link. One hand-on after the other would
    take `hosts` pieces a round.
    """
    machine = replace(MACHINE, inter=Link(0.0, 1.0, transfer_s=0.0))
    size, numel = hosts * devices, 240
    place = SubMesh(1, hosts, 0, devices)
    target = End(place, NdSbp.broadcast(place.mesh.num_axes))
    found = seconds(end(ONE, "()"), target, numel, "global_all_gather", machine)
    piece = numel * 4 / size
    least = numel * 4 + (size - 1) * piece
    assert least <= found <= (least + hosts * piece) * 1.01 < numel * 4 + (size - 1) * hosts * piece


def test_slices_of_one_device_each_go_in_rounds():
    """Rows to columns over all devices (AlpaComm Table 2, case 4): the links never idle."""
    case = CASES[3]
    plan = plan_reshard(TensorSpec((64, 64)), *case.ends(), MACHINE, strategy="broadcast")
    naive = plan_reshard(
        TensorSpec((64, 64)), *case.ends(), MACHINE, strategy="broadcast", order="naive"
    )
    assert len(plan.scheduled) == 64
    assert plan.seconds < 1.05 * plan.bound_s
    assert naive.seconds > 1.4 * plan.bound_s


@given(reshardings(), st.sampled_from(STRATEGIES))
@settings(max_examples=60)
def test_never_below_the_bound(drawn, strategy):
    spec, source, target = drawn
    plan = plan_reshard(spec, source, target, cluster(), strategy=strategy, budget=300)
    assert plan.seconds >= plan.bound_s * (1 - 1e-9)


@given(reshardings())
@settings(max_examples=40)
def test_the_cheapest_route_is_taken_and_broadcast_of_equals(drawn: tuple[TensorSpec, End, End]):
    found = plan_reshard(*drawn, cluster(), budget=300)
    every = {s: plan_reshard(*drawn, cluster(), strategy=s, budget=300) for s in STRATEGIES}
    least = min(plan.seconds for plan in every.values())
    assert found == every[found.strategy] and found.seconds <= least * (1 + 1e-9)
    if every["broadcast"].seconds <= least * (1 + 1e-9):
        assert found.strategy == "broadcast"


def test_the_scheduling_problem_has_latencies_one_after_the_other():
    """Two slices over one link, a message each: their devices start both at once."""
    source, target = end(SubMesh(0, 1, 0, 2), "(S0)"), end(SubMesh(1, 1, 0, 2), "(S0)")
    plan = plan_reshard(TensorSpec((10,)), source, target, MACHINE)
    assert plan.scheduled_s == pytest.approx(2 * 20.25)
    assert plan.seconds == pytest.approx(40.25)


@given(st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=3), max_size=12))
def test_rounds_are_as_long_as_they_can_be(own):
    """Read back: nothing of a later round would have fitted into an earlier one."""
    devices = {n: {(0, d) for d in some} for n, some in enumerate(own)}
    order = in_rounds(list(devices), devices)
    assert sorted(order) == list(devices)
    while order:
        taken, count = set(), 0
        while count < len(order) and taken.isdisjoint(devices[order[count]]):
            taken |= devices[order[count]]
            count += 1
        assert order[0] == min(order)
        assert all(not taken.isdisjoint(devices[n]) for n in order[count:])
        order = order[count:]
