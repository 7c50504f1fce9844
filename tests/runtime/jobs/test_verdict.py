"""Which rank is the cause, from what all ranks do."""

from dataclasses import replace

import pytest

from autoddl.runtime.jobs.verdict import Rank, judge

HERE = Rank(
    rank=0, host="h", state="S", ticks=5, is_dead=False, calls=3, inside=1, collectives=9,
    ended=False, patience_s=0.0, call="step 3", collective="all_gather of ranks 0, 1", reason="",
)  # fmt: skip
BEHIND = replace(HERE, rank=1, calls=2, inside=0, call="step 2")


def verdict(other, *, idle=20.0, silent=0.0, first=0.0, size=2):
    ranks = {0: HERE} if other is None else {0: HERE, 1: other}
    return judge(ranks, {0: 0.0, 1: silent}, {0: first, 1: idle}, 70.0, size, 10.0)


@pytest.mark.parametrize(
    ("other", "options", "text"),
    [
        (BEHIND, {}, "rank 1 of 2 on h has done nothing for 10 s in its own code after step 2"),
        (BEHIND, {}, "while rank 0 waits in step 3, after it asked for all_gather of ranks 0, 1"),
        (replace(BEHIND, state="T"), {}, "rank 1 of 2 on h is stopped"),
        (BEHIND, {"idle": 0.0, "silent": 11.0}, "rank 1 of 2 on h has not answered for 10 s"),
        (replace(BEHIND, is_dead=True), {"idle": 0.0}, "rank 1 of 2 on h ended without a word"),
        (None, {}, "rank 1 of 2 has not come within 60 s"),
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
    ],
)
def test_a_job_that_goes_on_is_left_alone(other, options):
    assert verdict(other, **options) is None


def test_what_a_rank_has_said_itself_is_not_said_again():
    cause = verdict(replace(BEHIND, is_dead=True, reason="ValueError: no"))
    assert cause is not None and cause.rank == 1 and not cause.text
