"""Settings and jobs of all tests."""

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
    found = Jobs({"PYTHONPATH": str(ROOT)})
    yield found
    found.end()
