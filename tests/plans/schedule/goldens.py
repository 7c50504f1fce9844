"""Writes the golden files anew: `python -m tests.plans.schedule.goldens`, then read the diff."""

from autoddl.plans.schedule.make import make_schedule

from .test_schedule import CASES, GOLDEN

if __name__ == "__main__":
    for case, call in CASES.items():
        (GOLDEN / f"{case}.txt").write_text(str(make_schedule(**call)))
