"""AutoDDL's Figures 3, 8, 9 and 10, predicted, beside the paper's numbers: `make bench-paper`.

Writes benchmarks/results/paper/: a JSON file for each case, `paper.md`, `paper.png`, and with
`--sensitivity` how the predicted reductions move when alpha, beta or the FLOP rate change by 30 %,
or alpha is doubled (`sensitivity.json`, `sensitivity.png`).
`--only NAME` prices the cases whose name has NAME in it and keeps the other cases' results.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import re
import time
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.plans.format import format_bytes, format_seconds
from autoddl.tools.compare import OURS
from benchmarks.paper_figures import (
    ATTENTION,
    CASES,
    COMMUNICATION,
    TIME,
    Case,
    Outcome,
    Schemes,
    attention_traffic,
    closest,
    compared,
    less,
    predict,
)

RESULTS = Path(__file__).parent / "results" / "paper"
# quick to plan many times
SWEPT = ("VGG13, 16 nodes", "VGG13, 32 nodes", "VGG13, 64 nodes", "VGG13, 2 x 8 GPUs")
FACTORS = {"alpha": (0.7, 1.0, 1.3, 2.0), "beta": (0.7, 1.0, 1.3), "flops": (0.7, 1.0, 1.3)}
NEAR = 0.10
LEVEL = 0.02  # no difference that a measurement would show


def main() -> None:
    parser = argparse.ArgumentParser(description="AutoDDL's evaluation, predicted.")
    parser.add_argument("--only", default="", help="price the cases with this in their names")
    parser.add_argument("--sensitivity", action="store_true", help="change alpha, beta and rates")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if options.only.lower() in case.name.lower():
            started = time.process_time()
            save(case, predict(case), time.process_time() - started)
            print(f"{case.name}: {time.process_time() - started:.1f} CPU seconds", flush=True)
    if options.only.lower() in ATTENTION.lower():
        figures = attention_traffic()
        told = {"date": datetime.date.today().isoformat(), "gibi_elements": figures}
        write_atomically(RESULTS / "attention.json", json.dumps(told, indent=1) + "\n")
        print(f"{ATTENTION}: {figures}", flush=True)
    if options.sensitivity:
        write_atomically(RESULTS / "sensitivity.json", json.dumps(sweep(), indent=1) + "\n")
    report()


def file_of(case: Case) -> Path:
    return RESULTS / f"{re.sub(r'[^a-z0-9]+', '_', case.name.lower())}.json"


def save(case: Case, found: Outcome, seconds: float) -> None:
    told = {
        "case": case.name,
        "date": datetime.date.today().isoformat(),
        "priced_on": platform.machine(),
        "cpu_seconds": round(seconds, 1),
        "schemes": found.schemes,
        "layers": found.layers,
        "spread": found.spread,
    }
    write_atomically(file_of(case), json.dumps(told, indent=1) + "\n")


def sweep() -> list[dict[str, Any]]:
    """The reductions of the quick cases on machines that differ in one number."""
    rows = []
    for case in CASES:
        if case.name not in SWEPT:
            continue
        for what, factors in FACTORS.items():
            for factor in factors:
                found = predict(case, lambda c, w=what, f=factor: changed(c, w, f)).schemes
                other = compared(case, found)
                rows.append(
                    {"case": case.name, "what": what, "factor": factor, "against": other,
                     "closest": closest(found), "time": less(found, other, TIME),
                     "communication": less(found, other, COMMUNICATION)}
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def changed(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The machine with all alphas, all betas or all FLOP rates times `factor`."""
    if what == "flops":
        rates = {k: v * factor for k, v in cluster.device.flops_per_s.items()}
        return dataclasses.replace(
            cluster, device=dataclasses.replace(cluster.device, flops_per_s=rates)
        )
    key = "alpha_s" if what == "alpha" else "beta_s_per_byte"
    links = {
        name: dataclasses.replace(link, **{key: getattr(link, key) * factor})
        for name, link in (("intra", cluster.intra), ("inter", cluster.inter))
    }
    return dataclasses.replace(cluster, **links)


def report() -> None:
    """The table and the plot of all cases that have results."""
    found = [
        (case, json.loads(file_of(case).read_text())) for case in CASES if file_of(case).exists()
    ]
    write_atomically(RESULTS / "paper.md", table(found))
    draw(found, RESULTS / "paper.png")
    if rows := sensitivity():
        draw_sensitivity(rows, RESULTS / "sensitivity.png")


Found = list[tuple[Case, dict[str, Any]]]


def table(found: Found) -> str:
    """The comparison in Markdown."""
    lines = [
        "# AutoDDL's evaluation, predicted",
        "",
        "How much less our plan takes than the paper's second best scheme. Priced with the machine "
        "files of `autoddl/cluster/machines`, in which each number has its source; nothing is "
        "fitted to the paper. Made by `make bench-paper`.",
        "",
        "| figure | case | against | communication: paper | ours | time: paper | ours | in words |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, told in found:
        schemes = told["schemes"]
        other = compared(case, schemes)
        lines.append(
            f"| {case.figure} | {case.name} | {other} {schemes[other][0]} | "
            f"{_share(case.communication)} | {_share(less(schemes, other, COMMUNICATION))} | "
            f"{_share(case.time)} | {_share(less(schemes, other, TIME))} | "
            f"{words(case, schemes, told.get('spread', {}))} |"
        )
    lines += ["", *attention_lines(), "## The schemes", ""]
    for case, told in found:
        lines += [f"### {case.name}", "", "| scheme | topology | iteration | communication | "
                  "through a NIC |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for name, (topology, seconds, communication, nic) in told["schemes"].items():
            lines.append(
                f"| {name} | {topology} | {format_seconds(seconds)} | "
                f"{format_seconds(communication)} | {format_bytes(nic)} |"
            )
        dense = [v for k, v in told["layers"].items() if k.startswith("classifier")]
        if dense:
            lines += ["", f"Fig. 8, our dense layers: {', '.join(dense)}"]
        lines.append("")
    return "\n".join(lines + sensitivity_lines())


def words(case: Case, schemes: Schemes, spread: Schemes) -> str:
    """Whether the sign agrees, by how much the reduction differs, and what is known of that.

    Computation alike, time less / communication less is communication's share of the other's time.
    """
    paper, other = case.communication, compared(case, schemes)
    ours = less(schemes, other, COMMUNICATION)
    same = (ours > 0) == (paper > 0) or abs(ours - paper) < LEVEL
    text = f"{'same' if same else 'other'} sign; communication {_points(ours - paper)}, time "
    text += _points(less(schemes, other, TIME) - case.time)
    nearest = closest(schemes)
    if nearest != other:
        text += f"; {nearest} is closer here, {_share(less(schemes, nearest, TIME))} of the time"
    for name in ("data parallel", "SUMMA"):
        if name in schemes and name != other:
            text += (
                f"; {name} {schemes[name][TIME] / schemes[OURS][TIME]:.2f} times as long as ours"
            )
    if case.communication:
        here = schemes[other][COMMUNICATION] / schemes[other][TIME]
        paper_s = case.time / case.communication
        text += (
            f"; communication is {_share(here)} of {other}'s time here, and {_share(paper_s)} in "
            f"the paper by its two reductions: with its share ours would take "
            f"{_share(ours * paper_s)} less time"
        )
    if spread:
        text += (
            f"; with the weights over at least {case.group} devices and no other limit ours takes "
            f"{_share(less(spread, 'Megatron', COMMUNICATION))} less communication and "
            f"{_share(less(spread, 'Megatron', TIME))} less time than Megatron on them"
        )
    return f"{text}. Paper: {case.says}. Here: {case.why}"


def attention_lines() -> list[str]:
    """Fig. 3, from its results if they are there."""
    file = RESULTS / "attention.json"
    if not file.exists():
        return []
    lines = [
        "## Fig. 3: traffic of an attention layer",
        "",
        "Width 8192, 1,024 x 1,024 tokens, 64 nodes, weights over at least 16: elements through a "
        "node's link in the forward pass. The paper's 4 x 16 Megatron and its 3D scheme move 180 "
        "to 96.",
        "",
        "| scheme | Gi elements | the paper's 180 to 96, scaled |",
        "| --- | --- | --- |",
    ]
    figures = json.loads(file.read_text())["gibi_elements"]
    for name, paper in (("Megatron", 3.75), (OURS, 2.0)):
        lines.append(f"| {name} | {figures[name]:.3f} | {paper:.3f} |")
    return [*lines, ""]


def sensitivity() -> list[dict[str, Any]]:
    """What `sweep` found, if it ran."""
    file = RESULTS / "sensitivity.json"
    return json.loads(file.read_text()) if file.exists() else []


def sensitivity_lines() -> list[str]:
    rows = sensitivity()
    if not rows:
        return []
    lines = ["## If the machine's numbers were 30 % off, or alpha twice as large", "",
             "| case | changed | factor | against | communication less | time less |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['what']} | {row['factor']} | {row['against']} | "
            f"{_share(row['communication'])} | {_share(row['time'])} |"
        )
    return [*lines, ""]


def draw(found: Found, file: Path) -> None:
    """Reductions of communication and of time, the paper's beside ours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.5 + 0.45 * len(found)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = [case.name for case, _ in found]
    places = list(range(len(found)))
    for axes, what, number in zip(
        panels, ("communication", "time"), (COMMUNICATION, TIME), strict=True
    ):
        paper = [100 * getattr(case, what) for case, _ in found]
        ours = [
            100 * less(told["schemes"], compared(case, told["schemes"]), number)
            for case, told in found
        ]
        axes.barh([p - 0.2 for p in places], paper, 0.38, label="paper, measured", color="#b8c4ce")
        axes.barh(
            [p + 0.2 for p in places], ours, 0.38, label="autoddl, predicted", color="#1f5f8b"
        )
        axes.set_yticks(places, names)
        axes.set_xlabel(f"{what} less than the paper's second best, %")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    figure.savefig(file, dpi=130)


def draw_sensitivity(rows: list[dict[str, Any]], file: Path) -> None:
    """The reductions of each case over the factor of one of the machine's numbers."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(8, 1 + 2.6 * len(cases)), layout="constrained")
    panels = figure.subplots(len(cases), 2, sharex=True, squeeze=False)
    for case, line in zip(cases, panels, strict=True):
        of_case = [row for row in rows if row["case"] == case]
        for axes, what in zip(line, ("communication", "time"), strict=True):
            for number in dict.fromkeys(row["what"] for row in of_case):
                points = [(r["factor"], 100 * r[what]) for r in of_case if r["what"] == number]
                axes.plot(*zip(*points, strict=True), marker="o", label=number)
            axes.set_title(f"{case}, against {of_case[0]['against']}", fontsize=9)
            axes.set_ylabel(f"{what} less, %")
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("times the machine file's number")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=130)


def _points(difference: float) -> str:
    near = "within" if abs(difference) <= NEAR else "not within"
    return f"{difference * 100:+.1f} points ({near} 10)"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
