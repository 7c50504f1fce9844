"""Unequal pieces in a box of four hosts: each way of a collective, measured beside its price.

    python -m benchmarks.box.uneven [--rate 100mbit]

HAP (Zhang et al., EuroSys 2024, Fig. 4) shows such curves for an all-gather of 4 MB. Here the first
host has 25 to 75 % of it; which way a plan takes, and how long the fastest one took. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass

from autoddl.cost.collectives import CommModel
from autoddl.sbp.collectives import Step
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.placement import NdSbp
from autoddl.tools.box import Box
from benchmarks.hetero import CALIBRATE

from .machines import calibrated
from .results import machine, save, where_and_when
from .work import run_steps

SKEWS = ((7, 7, 6, 6), (3, 3, 2, 2), (2, 2, 1, 1), (3, 3, 1, 1), (5, 2, 1, 1), (9, 1, 1, 1))
SIZES = (4_000_000, 64_000)
STEPS = (
    ("(S0)", "all_gather[0] S0->B"),
    ("(S0)", "all_gather[balanced][0] S0->B"),
    ("(P)", "reduce_scatter[0] P->S0"),
    ("(P)", "reduce_scatter[balanced][0] P->S0"),
    ("(S0)", "all_to_all[0] S0->S1"),
)


@dataclass(frozen=True)
class Case:
    """Seconds of a step, medians; `chosen`: whether a plan takes this way."""

    step: str
    bytes: int
    shares: tuple[int, ...]
    measured_s: float
    predicted_s: float
    chosen: bool


def table(cases: list[Case], about: dict[str, object]) -> str:
    """Markdown."""
    lines = [
        "# Unequal pieces",
        "",
        "Milliseconds of collectives on 4 hosts by `python -m benchmarks.box.uneven`, measured and",
        "predicted, where the hosts have shares of the tensor; a plan takes the way in bold.",
        "",
        where_and_when(about),
        "",
        "| bytes | shares | way | measured | predicted |",
        "| ---: | --- | --- | ---: | ---: |",
    ]
    for case in cases:
        way = Step.parse(case.step).way
        lines.append(
            f"| {case.bytes:,} | {':'.join(map(str, case.shares))} "
            f"| {f'**{way}**' if case.chosen else way} "
            f"| {1e3 * case.measured_s:.1f} | {1e3 * case.predicted_s:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", default="100mbit")
    args = parser.parse_args()
    cases: list[Case] = []
    with Box(4, 1, args.rate) as box:
        cluster = calibrated(box, args.rate, False, CALIBRATE.split())
        for size in SIZES:
            for shares in SKEWS:
                comm, rows = CommModel(cluster.with_shares(shares)), 4 * sum(shares)
                columns = max(1, round(size / 4 / rows / sum(shares))) * sum(shares)
                spec = TensorSpec((rows, columns))
                found = run_steps(box, spec.shape, STEPS, 7, shares, "seconds")
                for (placed, text), row in zip(STEPS, found, strict=True):
                    step, nd = Step.parse(text), NdSbp.parse(placed)
                    alpha_s, beta_s_per_byte = comm.price(step.way, (0,))
                    whole = (
                        spec.bytes if step.kind != "all_to_all" else spec.bytes / comm.mesh.parts[0]
                    )
                    (chosen,) = comm.cheapest(spec, nd, [step])
                    seconds = [statistics.median(host["seconds"]) for host in row]
                    cases.append(
                        Case(
                            text, spec.bytes, shares, statistics.median(seconds),
                            alpha_s + beta_s_per_byte * whole, chosen == step,
                        )
                    )  # fmt: skip
    about = machine()
    text = table(cases, about)
    save("uneven", {"machine": about, "cases": [asdict(case) for case in cases]}, text)
    print(text)


if __name__ == "__main__":
    main()
