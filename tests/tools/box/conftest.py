"""Tests of the cluster in a box: skipped where this process cannot make network namespaces."""

import subprocess

import pytest

from autoddl.tools.box.commands import check_possible, run


def why_not() -> str:
    """What keeps this process from making a box; "" if nothing does."""
    try:
        check_possible()
        run("ip", "netns", "add", "autoddl-probe")
        try:
            run(
                *("tc", "-n", "autoddl-probe", "qdisc", "add", "dev", "lo", "root", "tbf"),
                *("rate", "1mbit", "burst", "20000", "limit", "100000"),
            )
        finally:
            run("ip", "netns", "del", "autoddl-probe")
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        return f"no box on this machine: {error}"
    return ""


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips the test where there can be no box."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
