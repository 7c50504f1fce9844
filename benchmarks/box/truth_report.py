"""How well predictions agree with measurements: numbers, a table and the plot (AutoDDL Fig. 4)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

RULES = ("shared_nic", "plain")
RULE_NAMES = {"shared_nic": "shared NIC", "plain": "the paper's plain rule"}


@dataclass(frozen=True)
class Measured:
    """One plan at one rate; seconds are those of emulated compute.

    predicted_comm_s: by rule; compute_s: what the waits of the step add up to
    comm_samples, step_samples: of each visit, of which comm_s and step_s are the medians
    """

    model: str
    rate: str
    plan: str
    comm_s: float
    step_s: float
    compute_s: float
    predicted_comm_s: dict[str, float]
    comm_samples: tuple[float, ...] = ()
    step_samples: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """How far the repeats of the communication lie apart, relative to their median."""
        return (max(self.comm_samples) - min(self.comm_samples)) / self.comm_s

    def predicted_step_s(self, rule: str) -> float:
        return self.compute_s + self.predicted_comm_s[rule]


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation, and the median of |predicted / measured - 1|."""

    spearman: float
    error: float
    bias: float

    def __str__(self) -> str:
        return f"{self.spearman:.3f}, {self.error:.1%} ({self.bias:+.1%})"


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """Of lists of seconds, plan by plan."""
    errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
    correlation: Any = spearmanr(predicted, measured)
    return Agreement(
        float(correlation[0]), statistics.median(map(abs, errors)), statistics.median(errors)
    )


def choice_loss(cases: Sequence[Measured], rule: str) -> float:
    """How much slower than the fastest the plan is that the model ranks first."""
    first = min(cases, key=lambda case: case.predicted_step_s(rule))
    return first.step_s / min(case.step_s for case in cases) - 1


def median_spread(cases: Sequence[Measured]) -> float | None:
    """What the machine's own unrest does to a measurement; None if no repeats were kept."""
    spreads = [case.spread for case in cases if case.comm_samples]
    return statistics.median(spreads) if spreads else None


def repeatability(cases: Sequence[Measured]) -> float | None:
    """Spearman's correlation of one repeat of the communication with another, plan by plan.

    The median over pairs of repeats: where it is low, unrest of the machine hides the order.
    """
    kept = [case.comm_samples for case in cases if case.comm_samples]
    if len(kept) < 3:
        return None
    # plans measured at other times may have fewer repeats
    pairs = itertools.combinations(zip(*kept, strict=False), 2)
    return statistics.median(agreement(first, second).spearman for first, second in pairs)


def groups(cases: Sequence[Measured]) -> list[tuple[str, list[Measured]]]:
    """Cases by rate and model, then all of a rate."""
    found = []
    for rate in dict.fromkeys(case.rate for case in cases):
        there = [case for case in cases if case.rate == rate]
        for model in dict.fromkeys(case.model for case in there):
            found.append((f"{model}, {rate}", [c for c in there if c.model == model]))
        found.append((f"all, {rate}", there))
    return found


def numbers(cases: Sequence[Measured]) -> dict[str, Any]:
    """All figures of the report, for the JSON file."""
    found: dict[str, Any] = {}
    for name, some in groups(cases):
        found[name] = {
            "plans": len(some),
            "median_spread_of_repeats": median_spread(some),
            "spearman_of_repeats": repeatability(some),
        }
        for rule in RULES:
            comm, step = _agreements(some, rule)
            found[name][rule] = {
                "communication": vars(comm),
                "step": vars(step),
                "choice_loss": None if name.startswith("all") else choice_loss(some, rule),
            }
    return found


def table(cases: Sequence[Measured], machine: dict[str, Any]) -> str:
    """The report in Markdown."""
    lines = [
        "# Predicted against measured time (emulated compute)",
        "",
        f"{machine['processor']}, {machine['cores']} cores, load average "
        f"{machine['load_average']}, {machine['date']}; {machine['note']}",
        "",
        "Spearman's rank correlation, median |predicted / measured - 1| (median of the signed",
        "error); choice: how much slower than the fastest measured plan is the one ranked first.",
        "Spread: how far the repeats of one plan's communication lie apart (largest less smallest,",
        "by the median; the median plan's). Repeats: Spearman's correlation of one repeat with",
        "another: how far the machine agrees with itself. All seconds are of emulated compute.",
        "",
        "| plans | rule | communication | whole step | choice | spread | repeats |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, some in groups(cases):
        spread = median_spread(some)
        noise = "" if spread is None else f"{spread:.0%}"
        again = repeatability(some)
        again_text = "" if again is None else f"{again:.3f}"
        for rule in RULES:
            comm, step = _agreements(some, rule)
            choice = "" if name.startswith("all") else f"{choice_loss(some, rule):.1%}"
            lines.append(
                f"| {name} ({len(some)}) | {RULE_NAMES[rule]} | {comm} | {step} | {choice} "
                f"| {noise} | {again_text} |"
            )
    return "\n".join(lines)


def draw(cases: Sequence[Measured], path: Path) -> None:
    """Predicted against measured communication time, both rules side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 5.2), sharex=True, sharey=True)
    markers = dict(zip(dict.fromkeys(c.model for c in cases), "os^vD", strict=False))
    colours = dict(
        zip(dict.fromkeys(c.rate for c in cases), ("tab:blue", "tab:orange"), strict=False)
    )
    values = [c.comm_s for c in cases]
    ends = [min(values) / 1.6, max(values) * 1.6]
    for panel, rule in zip(panels, RULES, strict=True):
        for (model, marker), (rate, colour) in (
            (m, r) for m in markers.items() for r in colours.items()
        ):
            some = [c for c in cases if (c.model, c.rate) == (model, rate)]
            panel.scatter(
                [c.comm_s for c in some],
                [c.predicted_comm_s[rule] for c in some],
                marker=marker,
                color=colour,
                s=18,
                alpha=0.7,
                label=f"{model}, {rate}",
            )
        panel.plot(ends, ends, color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlim=ends, xlabel="measured communication (s)")
        comm, _ = _agreements(cases, rule)
        panel.set_title(
            f"{RULE_NAMES[rule]}: Spearman {comm.spearman:.3f}, error {comm.error:.0%}", fontsize=11
        )
    panels[0].set_ylabel("predicted communication (s)")
    panels[0].legend()
    figure.suptitle("A step's communication by each plan, emulated compute, box of 4 x 2")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _agreements(cases: Sequence[Measured], rule: str) -> tuple[Agreement, Agreement]:
    return (
        agreement([c.predicted_comm_s[rule] for c in cases], [c.comm_s for c in cases]),
        agreement([c.predicted_step_s(rule) for c in cases], [c.step_s for c in cases]),
    )
