"""Settings and jobs of all tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.ranks import ROOT, Jobs

# The same examples on every run; a busy machine is no failure.
settings.register_profile("autoddl", derandomize=True, deadline=None)
settings.load_profile("autoddl")


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """OneFlow jobs that the tests share."""
    folders = (ROOT, ROOT / "tests" / "backend")
    found = Jobs({"PYTHONPATH": os.pathsep.join(map(str, folders))})
    yield found
    found.end()
