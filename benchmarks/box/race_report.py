"""What a race of plans shows: table, verdicts and bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOISE = 0.03  # how far behind another "as fast" may lie
GAP = 1.25  # a gap to the second best that the model must not promise in vain


@dataclass(frozen=True)
class Racer:
    """One plan. link_bytes: of the busiest host's link, headers included, less an idle run's."""

    name: str
    topology: str
    predicted_s: float
    predicted_comm_s: float
    predicted_nic_bytes: float
    link_bytes: float
    samples_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.samples_s)


@dataclass(frozen=True)
class Case:
    """All plans of one model on one box; ours is the first."""

    label: str
    emulated: bool
    racers: tuple[Racer, ...]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Case:
        racers = (Racer(**{**r, "samples_s": tuple(r["samples_s"])}) for r in data["racers"])
        return Case(data["label"], data["emulated"], tuple(racers))

    @property
    def ours(self) -> Racer:
        return self.racers[0]

    @property
    def second(self) -> Racer | None:
        """The fastest of the others, measured; None if every scheme comes to our plan."""
        return min(self.racers[1:], key=lambda racer: racer.seconds, default=None)

    def verdict(self) -> dict[str, Any]:
        """What was aimed at, and whether it holds."""
        second = self.second
        if second is None:
            return {"against": "", "faster": None}
        measured = second.seconds / self.ours.seconds
        found: dict[str, Any] = {
            "against": second.name,
            "faster": measured,
            "not behind": measured >= 1 - NOISE,
            "fewest bytes": self.ours.link_bytes
            <= min(r.link_bytes for r in self.racers) * (1 + 1e-3),
        }
        errors = [
            abs((r.predicted_s / self.ours.predicted_s) / (r.seconds / self.ours.seconds) - 1)
            for r in self.racers[1:]
        ]
        found["worst error of ratios"] = max(errors)
        found["median error of ratios"] = statistics.median(errors)
        promised = min(r.predicted_s for r in self.racers[1:]) / self.ours.predicted_s
        found["promised"] = promised
        return found


def table(cases: Sequence[Case], machine: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    lines = [
        "# Our plan against the baselines, measured in the box",
        "",
        f"{machine['processor']}, {machine['cores']} cores, load average "
        f"{machine['load_average']}, {machine['date']}. Seconds of a training step: median of "
        "rounds in which all plans take turns, with the least and the most. All but the cases "
        "marked so are of emulated compute. Bytes are those of the busiest host's link, headers "
        "included. Schemes that come to the same plan stand in one row.",
        "",
    ]
    for case in cases:
        lines += [f"## {case.label}{' (emulated compute)' if case.emulated else ''}", ""]
        lines += [
            "| scheme | topology | measured s | by ours | predicted s | by ours | link MB |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        ours = case.ours
        for racer in case.racers:
            low, high = min(racer.samples_s), max(racer.samples_s)
            cells = (
                racer.name,
                racer.topology,
                f"{racer.seconds:.3f} ({low:.3f} to {high:.3f})",
                f"{racer.seconds / ours.seconds:.2f}",
                f"{racer.predicted_s:.3f}",
                f"{racer.predicted_s / ours.predicted_s:.2f}",
                f"{racer.link_bytes / 1e6:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", _sentence(case), ""]
    return "\n".join(lines)


def _sentence(case: Case) -> str:
    found = case.verdict()
    if found["faster"] is None:
        return "Every scheme comes to our plan here."
    text = f"Against the second best ({found['against']}): {found['faster']:.2f} times as fast"
    if not found["not behind"]:
        text += f", **behind by more than {NOISE:.0%}**"
    text += (
        f"; promised {found['promised']:.2f}; predicted ratios are off by "
        f"{found['median error of ratios']:.0%} (median), "
        f"{found['worst error of ratios']:.0%} (worst)"
    )
    if found["promised"] >= GAP > found["faster"]:
        text += f", **a promised gap of {GAP} is missed**"
    text += "; fewest bytes: " + ("yes" if found["fewest bytes"] else "**no**")
    return text + "."


def draw(cases: Sequence[Case], path: Path) -> None:
    """Bars of measured seconds with their spread, and predictions as marks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 2  # 1000 pixels wide, as wide as a page shows it
    rows = -(-len(cases) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(10, 2.4 * rows), squeeze=False)
    for panel in panels.flat[len(cases) :]:
        panel.axis("off")
    for panel, case in zip(panels.flat, cases, strict=False):
        at = range(len(case.racers))
        medians = [r.seconds for r in case.racers]
        below = [m - min(r.samples_s) for m, r in zip(medians, case.racers, strict=True)]
        above = [max(r.samples_s) - m for m, r in zip(medians, case.racers, strict=True)]
        colours = ["tab:green"] + ["tab:gray"] * (len(case.racers) - 1)
        panel.barh(at, medians, xerr=[below, above], color=colours, capsize=2)
        predicted = [r.predicted_s for r in case.racers]
        panel.plot(predicted, at, "k|", markersize=14, markeredgewidth=2, label="predicted")
        panel.set_yticks(list(at), [r.name.replace(" = ", " =\n") for r in case.racers])
        panel.invert_yaxis()
        panel.set_title(case.label + (" (emulated compute)" if case.emulated else ""), fontsize=11)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower right")
    figure.supxlabel("seconds of a step: bars measured, with the least and the most", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
