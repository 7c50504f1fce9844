"""What runs on several ranks is what was planned."""

import pytest


@pytest.mark.parametrize(
    ("check", "nproc"),
    [
        ("only_planned_collectives", 4),
        ("one_rank_is_heard_by_all", 2),
        ("other_set_ups_are_refused", 2),
        ("debug_mode_sees_a_broken_kernel", 2),
        ("dropout_agrees_on_replicas", 4),
        ("batchnorm_of_each_shard", 2),
    ],
)
def test_on_several_ranks(launch, check, nproc):
    assert f"{check} holds" in launch("watched", nproc, check)


def test_what_one_rank_changes_later_is_refused(launch):
    assert "all are refused" in launch("disagree", 2)
