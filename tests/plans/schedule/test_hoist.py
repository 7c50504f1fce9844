"""Transfers go before what they do not wait for, and every queue keeps its order."""

import pytest

from autoddl.plans.schedule.hoist import hoisted
from autoddl.plans.schedule.make import make_schedule


@pytest.mark.parametrize("name", ("gpipe", "1f1b", "eager-1f1b", "zb-h1"))
def test_queues_keep_their_order(name):
    schedule = make_schedule(name, 4, 8)
    for stage, actions in enumerate(schedule.actions):
        order = hoisted(actions, schedule.joint)
        assert tuple(a for a in order if a.is_compute) == schedule.compute(stage)
        assert tuple(a for a in order if not a.is_compute) == schedule.communication(stage)
        behind = {"SF": "F", "SB": "W" if schedule.joint else "B"}
        for n, action in enumerate(order):
            if action.is_send:
                made = (behind[action.kind], action.micro_batch)
                assert made in {(a.kind, a.micro_batch) for a in order[:n]}


def test_transfers_go_first():
    schedule = make_schedule("1f1b", 2, 2)
    text = " ".join(map(str, hoisted(schedule.actions[0], True)))
    assert text == "F0 SF0>1 F1 SF1>1 RB0<1 RB1<1 B0 W0 B1 W1"


@pytest.mark.parametrize("name", ("gpipe", "1f1b", "eager-1f1b", "zb-h1"))
def test_collectives_keep_their_place_among_the_transfers(name):
    """Where forward passes communicate, everything that communicates stays in the list's order."""
    schedule = make_schedule(name, 4, 8)
    for actions in schedule.actions:
        order = hoisted(actions, schedule.joint, lambda action: action.kind == "F")
        assert sorted(map(str, order)) == sorted(map(str, actions))
        communicates = [a for a in order if a.kind == "F" or not a.is_compute]
        assert communicates == [a for a in actions if a.kind == "F" or not a.is_compute]


def test_transfers_go_before_the_other_passes():
    actions = make_schedule("1f1b", 2, 2).actions[1]
    listed = " ".join(map(str, actions))
    text = " ".join(map(str, hoisted(actions, True, lambda action: action.kind == "F")))
    assert listed.index("RF1<0") > listed.index("F0 ") and text.startswith("RF0<0 F0 RF1<0 B0")
