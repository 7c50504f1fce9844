"""HiDup's Table 4 (Zhang et al., SoCC 2022), predicted: `make bench-hidup-paper`.

    python -m benchmarks.hidup_paper [--graphs FOLDER]

BERT with sparsely gated experts on the machine file `hidup`: one or two hosts with 4 V100 and
100 Gb/s between them, or 30. 8 layers of BERT-Base with experts in every second one, one expert a
GPU, two for each token, Adam, sequences of 128 tokens. The paper does not state the rows a GPU;
its authors' configuration has 32. Computation counts at two rates: that of the machine file, which
is the one of the machine files for HAP and Whale, too, and the one at which the step computes as
long on one host as Table 4 says (0.2948 s). The rest of the numbers are data sheets' and the
paper's; its Table 2 says how much slower computation is beside communication.

Ours: the plan with `overlap=True`, and with `overlap=False` the serial one. Hidden: the share of
communication that runs beside computation (HiDup's overlapping ratio where communication is less).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures

RESULTS = Path(__file__).parent / "results" / "box"
A_DEVICE, GPUS, TOKENS = 32, 4, 128
MEASURED = 10.6e12  # FLOP/s at which computation takes what Table 4 says on one host


@dataclass(frozen=True)
class Case:
    """A column of Table 4; the paper's seconds, and its overlapping ratio."""

    hosts: int
    gbits: float
    wall_s: float
    computation_s: float
    communication_s: float
    ratio: float

    @property
    def name(self) -> str:
        return f"{self.hosts}x{GPUS}" + f", {self.gbits:g} Gb/s" * (self.hosts > 1)

    def cluster(self, flops_per_s: float | None) -> Cluster:
        whole = Cluster.load("hidup").with_shape(nodes=self.hosts)
        beta = whole.inter.beta_s_per_byte * 100 / self.gbits
        inter = dataclasses.replace(whole.inter, beta_s_per_byte=beta)
        rates = {} if flops_per_s is None else {"flops_per_s": {"float32": flops_per_s}}
        return dataclasses.replace(
            whole, inter=inter, device=dataclasses.replace(whole.device, **rates), sources={}
        )


CASES = (
    Case(1, 100, 0.2972, 0.2948, 0.0297, 0.919),
    Case(2, 100, 0.3985, 0.3088, 0.1523, 0.411),
    Case(2, 30, 0.6657, 0.3021, 0.4432, 0.264),
)


def graph_of(experts: int, graphs: Path | None) -> Graph:
    """Traced, or read from the folder of graphs that were traced before."""
    file = None if graphs is None else graphs / f"hidup_{experts}.json"
    if file is not None and file.exists():
        return Graph.load(file)
    import oneflow as flow

    from autoddl.runtime.oneflow.models.blank import blank
    from autoddl.runtime.oneflow.models.moe import MixedLanguageModel, language_loss
    from autoddl.runtime.oneflow.trace.job.meta import storage_free
    from autoddl.runtime.oneflow.trace.trace import trace

    with storage_free():
        model = MixedLanguageModel(8, 768, 12, TOKENS, 33278, experts, 2, causal=False)
    tokens = blank(A_DEVICE * experts, TOKENS, dtype=flow.int64)
    graph = trace(model, tokens, tokens, loss=language_loss)
    if file is not None:
        graph.save(file)
    return graph


def predict(case: Case, rate: float | None, graphs: Path | None) -> dict[str, Any]:
    """Seconds of our plans, and what the overlapped one consists of."""
    graph, cluster = graph_of(case.hosts * GPUS, graphs), case.cluster(rate)
    serial = find_plan(graph, cluster, PlanOptions(baselines=False, overlap=False))
    started = time.process_time()
    plan = find_plan(graph, cluster, PlanOptions(baselines=False, overlap=True))
    cost = figures(plan).cost
    return {
        "case": case.name,
        "flops_per_s": rate or cluster.device.flops_per_s["float32"],
        "planning_cpu_s": round(time.process_time() - started, 2),
        "serial_s": figures(serial).iteration_s,
        "wall_s": figures(plan).iteration_s,
        "computation_s": cost.compute_s,
        "communication_s": cost.communication_s,
        "hidden_s": cost.hidden_s,
        "in_flight": plan.in_flight[0],
        "needed_bytes": stage_figures(plan.stage).required_bytes(),
        "gap": stage_figures(plan.stage).gap,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| hosts | rate | HiDup, measured: wall, computation, communication, hidden | ours: wall "
        "| computation | communication | hidden | in flight | serial | needs | gap | CPU s |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    of = {case.name: case for case in CASES}
    for row in rows:
        case = of[row["case"]]
        seconds = (case.wall_s, case.computation_s, case.communication_s)
        told = ", ".join(f"{s:.3f}" for s in seconds)
        hidden = row["hidden_s"] / min(row["communication_s"], row["computation_s"])
        lines.append(
            f"| {case.name} | {row['flops_per_s']:.3g} | {told}, {case.ratio:.0%} "
            f"| {row['wall_s']:.3f} | {row['computation_s']:.3f} | {row['communication_s']:.3f} "
            f"| {hidden:.0%} | {row['in_flight']} | {row['serial_s']:.3f} "
            f"| {row['needed_bytes'] / 1e9:.1f} GB | {row['gap']:.1%} | {row['planning_cpu_s']} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="HiDup's Table 4, predicted.")
    parser.add_argument("--graphs", type=Path, help="folder in which traced graphs are kept")
    graphs = parser.parse_args().graphs
    rows = [predict(case, rate, graphs) for rate in (None, MEASURED) for case in CASES]
    print(*table(rows), sep="\n")
    write_atomically(RESULTS / "hidup.json", json.dumps(rows, indent=1) + "\n")
    text = (__doc__ or "").split("\n\n", 2)[2].strip()
    lines = ["# HiDup's Table 4, predicted", "", text, "", *table(rows), ""]
    write_atomically(RESULTS / "hidup.md", "\n".join(lines))


if __name__ == "__main__":
    main()
