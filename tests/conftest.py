"""Settings of all tests."""

from hypothesis import settings

# The same examples on every run; a busy machine is no failure.
settings.register_profile("autoddl", derandomize=True, deadline=None)
settings.load_profile("autoddl")
