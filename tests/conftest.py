"""Settings and jobs of all tests."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import settings

from tests.ranks import ROOT, Jobs

# The same examples on every run; a busy machine is no failure.
settings.register_profile("autoddl", derandomize=True, deadline=None)
settings.load_profile("autoddl")


os.environ.setdefault("AUTODDL_RECORD", "")  # jobs that are made to fail leave no files
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's `&` lets a program ignore Ctrl-C, and so all that it starts: those that tests
    # interrupt never ended.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """Jobs of this environment's framework that the tests share."""
    found = Jobs({"PYTHONPATH": str(ROOT)}, ("oneflow" if find_spec("oneflow") else "torch",))
    yield found
    found.end()
