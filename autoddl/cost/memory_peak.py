"""The fullest moment of a planned step: its tape, by the program that runs it, and a sweep."""

from __future__ import annotations

from typing import Literal

from .accumulate import late
from .chains import ChainRule, compiled_peak, holds_anything
from .lifetime import StepTape
from .planned_step import PlannedStep
from .tape import Peak

Runtime = Literal["graph", "executor"]
RUNTIMES: tuple[Runtime, ...] = ("graph", "executor")


def memory_peak(plan: PlannedStep, runtime: Runtime = "graph") -> Peak:
    """What one device holds then; of an unknown runtime a ValueError."""
    if runtime not in RUNTIMES:
        raise ValueError(f"unknown runtime {runtime!r}; use one of {', '.join(RUNTIMES)}")
    if runtime == "executor":
        return StepTape(plan).build().sweep()
    return min(compiled_peaks(plan).values(), key=lambda peak: peak.bytes)


def compiled_peaks(plan: PlannedStep) -> dict[ChainRule, Peak]:
    """The fullest moment of a compiled step, for each way to chain that may be the best."""
    rules: tuple[ChainRule, ...] = ("tasks",)
    if plan.micro_batches > 1:
        whole = len(plan.compiled_axes) == 1
        rules = ("operators",) if whole else ("operators", "tasks")
    peaks: dict[ChainRule, Peak] = {}
    for rule in rules:
        step = StepTape(plan, rule)
        tape, after = step.build(), late(step)
        rule = "apart" if rule == "operators" and not holds_anything(after) else rule
        peaks[rule] = compiled_peak(tape, after, plan.micro_batches, rule)
    return peaks
