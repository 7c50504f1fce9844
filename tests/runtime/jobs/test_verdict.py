"""Which rank is the cause, from what all ranks do."""

from dataclasses import replace

import pytest

from autoddl.runtime.jobs.links import Stuck
from autoddl.runtime.jobs.verdict import Rank, judge

HERE = Rank(
    rank=0, host="h", address="127.0.0.1", peers={}, state="S", ticks=5, is_dead=False,
    has_loaded=True, calls=3, inside=1, collectives=9, ended=False, patience_s=0.0,
    link_bytes_per_s=0.0, is_guarded=True, call="step 3",
    collective="all_gather of ranks 0, 1", reason="",
)  # fmt: skip
BEHIND = replace(HERE, rank=1, calls=2, inside=0, call="step 2")


def verdict(other, *, idle=20.0, silent=0.0, first=0.0, size=2):
    return judge({0: HERE, 1: other}, {0: 0.0, 1: silent}, {0: first, 1: idle}, 70.0, size, 10.0)


@pytest.mark.parametrize(
    ("other", "options", "text"),
    [
        (BEHIND, {}, "rank 1 of 2 on h has done nothing for 10 s in its own code after step 2"),
        (BEHIND, {}, "while rank 0 waits in step 3, after it asked for all_gather of ranks 0, 1"),
        (replace(BEHIND, state="T"), {}, "rank 1 of 2 on h is stopped"),
        (BEHIND, {"idle": 0.0, "silent": 11.0}, "rank 1 of 2 on h has not answered for 10 s"),
        (replace(BEHIND, is_dead=True), {"idle": 0.0}, "rank 1 of 2 on h ended without a word"),
        (
            replace(HERE, rank=1),
            {"first": 20.0},
            "rank 0 of 2 on h has done nothing for 10 s",
        ),
    ],
)
def test_the_cause_is_named(other, options, text):
    cause = verdict(other, **options)
    assert cause is not None and text in cause.text and "ends the job" in cause.text


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (BEHIND, {"idle": 9.0}),  # it goes on, perhaps computes in its own code
        (replace(BEHIND, patience_s=30.0), {}),  # a step takes long
        (replace(HERE, rank=1, inside=0), {"first": 0.0}),  # nobody waits
        (replace(BEHIND, ended=True, is_dead=True), {"silent": 11.0}),
        (BEHIND, {"silent": 9.6}),  # a link that is down, before it may be said
    ],
)
def test_a_job_that_goes_on_is_left_alone(other, options):
    assert verdict(other, **options) is None


AT_START = replace(HERE, calls=0, inside=0, collectives=0, is_guarded=False)
NOT_COME = replace(AT_START, rank=1, has_loaded=False)


def at_start(one, other, idle, running_s=100.0):
    silent_s = {0: 0.0, 1: 0.0}
    return judge({0: one, 1: other}, silent_s, {0: idle, 1: idle}, running_s, 2, 10.0)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (AT_START, NOT_COME, "rank 1 of 2 on h has not come within 60 s, while rank 0 waits"),
        (
            replace(NOT_COME, rank=0),
            replace(AT_START, rank=1),
            "rank 0 of 2 on h has not come within 60 s, while rank 1 waits",
        ),
        (AT_START, replace(AT_START, rank=1, is_dead=True), "rank 1 of 2 on h has not come"),
        (HERE, replace(NOT_COME, is_dead=True), "rank 1 of 2 on h ended without a word before it"),
        (HERE, replace(NOT_COME), "rank 1 of 2 on h has done nothing for 60 s before parallelize"),
    ],
)
def test_who_does_not_come_to_the_import_of_the_framework_is_named(one, other, text):
    cause = at_start(one, other, 61.0)
    assert cause is not None and text in cause.text and "ends the job" in cause.text


@pytest.mark.parametrize(
    ("one", "other", "idle"),
    [
        (AT_START, NOT_COME, 59.0),  # it may still read what it needs
        (replace(NOT_COME, rank=0), NOT_COME, 100.0),  # nobody waits: any script may sleep
        (AT_START, replace(AT_START, rank=1), 100.0),  # a script that needs no autoddl
        (NOT_COME, replace(AT_START, rank=1, is_dead=True), 100.0),  # one that has ended
    ],
)
def test_a_job_that_has_not_begun_is_left_alone(one, other, idle):
    assert at_start(replace(one, rank=0), other, idle) is None


def test_who_has_met_in_the_framework_is_not_missing():
    """Its companion does not reach this one, as behind a firewall, and the job goes on."""

    def alone(rank):
        return judge({0: rank}, {0: 0.0}, {0: 20.0}, 70.0, 2, 10.0)

    assert alone(replace(HERE, inside=0)) is None
    cause = alone(replace(HERE, calls=1, inside=1))
    assert cause is not None and "rank 1 of 2 has not come within 60 s" in cause.text


def test_who_waits_for_the_loss_of_a_step_is_not_the_cause():
    """It has left the step, with fewer collectives than one that is stuck inside of it."""
    waits = replace(HERE, inside=0)
    stuck = replace(HERE, rank=1, collectives=12)
    idle = {0: 20.0, 1: 20.0}
    cause = judge({0: waits, 1: stuck}, dict.fromkeys(idle, 0.0), idle, 70.0, 2, 10.0)
    assert cause is not None
    assert cause.text.startswith("rank 1 of 2 on h has done nothing for 10 s in step 3")


def test_what_a_rank_has_said_itself_is_not_said_again():
    cause = verdict(replace(BEHIND, is_dead=True, reason="ValueError: no"))
    assert cause is not None and cause.rank == 1 and not cause.text


FOUR = {n: replace(HERE, rank=n, host="h", address=f"10.0.{n}.2") for n in range(4)}


def of_four(silent=(), stuck=None):
    """On four hosts, of some of which nothing has been heard for 11 s; or all of which wait."""
    silent_s = {n: 11.0 if n in silent else 0.0 for n in FOUR}
    idle_s = dict.fromkeys(FOUR, 0.0 if silent else 20.0)
    cause = judge(FOUR, silent_s, idle_s, 70.0, 4, 10.0, stuck)
    assert cause is not None
    return cause.text


def test_a_link_that_is_down_is_named():
    assert "rank 2 of 4 on h (10.0.2.2) has not answered for 10 s: its host or the link" in of_four(
        [2]
    )
    text = of_four([2, 3])
    assert "nor have the other ranks on 10.0.2.2, 10.0.3.2: the links between them and h" in text
    text = of_four([1, 2, 3])
    assert text.startswith("rank 0 of 4 on h (10.0.0.2) has heard nothing from any other host")
    assert "its host's link is down" in text


def test_a_link_between_other_hosts_is_named():
    """Companions of both still reach rank 0's, and all ranks wait."""
    text = of_four(stuck=Stuck(2, "10.0.3.2", 9.0))
    assert "rank 2 of 4 on h (10.0.2.2) has had no answer from rank 3 on h (10.0.3.2)" in text
    assert "the link between them is down" in text
    assert "has done nothing" in of_four(stuck=Stuck(2, "10.0.3.2", 2.0))
