"""Whale's evaluation (Jia et al., ATC 2022, section 5), predicted: `make bench-whale-paper`.

    python -m benchmarks.whale_paper [--only NAME] [--graphs FOLDER]

On the machine file `whale`: hosts with 8 V100 of 32 GB or 8 P100 of 16 GB and 50 Gb/s between them,
or as many of each as the figure has. Nothing is fitted: the file's numbers come from data sheets,
the ratio of the two rates from measurements of others (1.796).

The paper states neither its batches nor its optimizers; `whale_models` says what is taken for its
models. 32 rows a device are taken where nothing else is said, SGD with momentum for ResNet50, Adam
for the language models, and for Adafactor SGD, whose memory is the same but for its factored
moments. Gradients of data parallelism travel beside the backward pass (Figs. 13 to 17). GPipe runs
blocks again, as published. Equal layers (Fig. 18) lie on their hosts in the best order for them.
What Whale measured holds the framework's own costs, too; no prediction does.

Where less is predicted than was measured: inside one host computation hides the exchange of all
gradients (Figs. 13 and 15 on 8 GPUs); ResNet50 is bound by memory traffic in part, whose rates have
a ratio of 1.23 by the data sheets, and BertLarge of 16 rows by its exchange (Fig. 17); a stage of
M6-10B has one host of 8 and four of 32, and exchanges its gradients after the last micro-batch, in
turn with computation (Fig. 19). BertLarge of 32 rows gains more than balance gives, as equal rows
make P100 run blocks again.

GNMT (Fig. 17; 5,652 operators) is not in the table. Once the steps of an LSTM share one gradient of
each weight, rows by speed gain 1.02 with 32 sentences of 16 words a GPU and 1.09 with 128: between
two hosts the exchange takes 0.35 s, computation 0.19 and 0.50 s. Our plan of 32 gains 1.49.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import each_baseline
from autoddl.planner.shares import proportional_shares
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures

RESULTS = Path(__file__).parent / "results" / "hetero"
A_DEVICE = 32  # rows
MACHINE = Cluster.load("whale")


def v100(hosts: int, gpus: int = 8) -> Cluster:
    """V100 hosts alone."""
    return MACHINE.of_group(0).with_shape(hosts, gpus)


def both(gpus: int) -> Cluster:
    """A host of each kind."""
    return MACHINE.with_shape(gpus_per_node=gpus)


@dataclass(frozen=True)
class Row:
    """What the paper measured of a case, and what is predicted; at_least: what we ask of it."""

    case: str
    what: str
    paper: str
    predicted: float | str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> str:
        if isinstance(self.predicted, str) or (self.at_least is None and self.at_most is None):
            return ""
        low, high = self.at_least or 0.0, self.at_most or float("inf")
        return "yes" if low <= self.predicted <= high else "no"


Graphs = Callable[[str, int], Graph]
Rows = Iterator[Row]
IMAGES = PlanOptions(
    optimizer="momentum", batch_norm="shard", micro_batches=1, overlap=True, baselines=False,
    gap=0.001,
)  # fmt: skip
WORDS = PlanOptions(baselines=False, gap=0.001, overlap=False)


def seconds(plan: Plan) -> float:
    return figures(plan).iteration_s


def by_data(graph: Graph, where: Cluster, options: PlanOptions, by_speed: bool = False) -> Plan:
    """Plain data parallelism, its rows equal or by speed."""
    shares = proportional_shares(where, graph) if by_speed else ()
    asked = dataclasses.replace(options, shares=":".join(map(str, shares)) or "even")
    schemes = each_baseline(graph, where, asked)
    plan = next(plan for record, plan in schemes if record.name == "data parallel")
    assert plan is not None, "it does not fit"
    return plan


def figure_11(graphs: Graphs) -> Rows:
    """1F1B beside GPipe, the same stages and micro-batches; and the schedule that is fastest."""
    for stages, paper in ((4, 1.45), (8, 1.14)):
        graph, where = graphs("bert_large", 8 * A_DEVICE), v100(1, stages)
        own = dataclasses.replace(WORDS, stages=stages, micro_batches=8)
        gpipe = find_plan(
            graph, where, dataclasses.replace(own, schedule="gpipe", checkpointing="all")
        )
        for schedule in ("1f1b", "zb-h1"):
            plan = find_plan(graph, where, dataclasses.replace(own, schedule=schedule))
            yield Row(
                f"Fig. 11, BertLarge, {stages} stages", f"GPipe / {schedule}", f"{paper}",
                seconds(gpipe) / seconds(plan), paper if schedule == "zb-h1" else None,
            )  # fmt: skip


def figure_12(graphs: Graphs) -> Rows:
    """Stages with data parallelism inside, on 8, 16 and 32 devices."""
    for hosts in (1, 2, 4):
        graph = graphs("bert_large", 8 * hosts * A_DEVICE)
        taken = {
            stages: seconds(
                find_plan(graph, v100(hosts), dataclasses.replace(
                    WORDS, stages=stages, micro_batches=8, schedule="1f1b"))
            )
            for stages in (2, 4, 8)
        }  # fmt: skip
        told = ", ".join(f"{n}: {graph.batch / s:.0f}" for n, s in taken.items())
        yield Row(f"Fig. 12, BertLarge, {8 * hosts} GPUs", "rows a second by stages", "8 worse",
                  told)  # fmt: skip


def figures_13_to_16(graphs: Graphs) -> Rows:
    """A large classifier behind ResNet50: data parallelism, the hybrid, its two patterns."""
    hybrid = {"fc": "split(dim=0)"}
    rates: dict[str, dict[int, float]] = {"resnet_100k": {}, "resnet_1m": {}}
    papers = {1: (1.13, 1.6, 0.06), 2: (1.66, None, None), 4: (2.43, 3.75, 0.10)}
    for hosts, (ahead, patterns, bridge) in papers.items():
        name, where = f"100,000 classes, {8 * hosts} GPUs", v100(hosts)
        graph = graphs("resnet_100k", 8 * hosts * A_DEVICE)
        plain, free = by_data(graph, where, IMAGES), find_plan(graph, where, IMAGES)
        asked = dataclasses.replace(IMAGES, zero=False)
        whale = find_plan(graph, where, dataclasses.replace(asked, hints=hybrid))
        other = find_plan(graph, where, dataclasses.replace(
            asked, hints={"fc": "split(dim=1)"}))  # fmt: skip
        for plan, what in ((whale, "DP / hybrid"), (free, "DP / our plan")):
            least = ahead if plan is free else None
            yield Row(f"Fig. 13, {name}", what, f"{ahead}", seconds(plain) / seconds(plan), least)
        yield Row(f"Fig. 15, {name}", "SP2 / SP1", f"{patterns or 'between'}",
                  seconds(other) / seconds(whale), 1.6)  # fmt: skip
        cost, sync = stage_figures(whale.stage).cost, stage_figures(plain.stage).cost
        moved_s = cost.communication_s - _exchange_s(whale)
        yield Row(f"Fig. 16, {name}", "bridge, of the step", f"{bridge or 'between'}",
                  moved_s / cost.iteration_s, at_most=bridge or 0.1)  # fmt: skip
        paper = "6" if hosts == 4 else ""
        yield Row(f"Fig. 16, {name}", "DP's sync / the hybrid's communication", paper,
                  sync.communication_s / cost.communication_s)  # fmt: skip
        rates["resnet_100k"][hosts] = graph.batch / seconds(whale)
        graph = graphs("resnet_1m", 8 * hosts * A_DEVICE)
        found = find_plan(graph, where, dataclasses.replace(asked, hints=hybrid))
        rates["resnet_1m"][hosts] = graph.batch / seconds(found)
    graph = graphs("resnet_1m", 8 * A_DEVICE)
    for optimizer in ("momentum", "adam"):
        own = dataclasses.replace(IMAGES, optimizer=optimizer, memory_limit_bytes=float("inf"))
        needed = max(figures(by_data(graph, v100(1), own)).needed_bytes)
        yield Row("Fig. 14, 1,000,000 classes, 8 GPUs", f"DP with {optimizer} needs",
                  "out of memory", f"{needed / 1e9:.1f} GB of 32")  # fmt: skip
    own = rates["resnet_1m"]
    yield Row("Fig. 14, 1,000,000 classes", "32 GPUs / (4 x 8 GPUs)", "0.95",
              own[4] / (4 * own[1]), 0.95)  # fmt: skip


def _exchange_s(plan: Plan) -> float:
    """Seconds in which the gradients of parameters that are whole on all devices are added up."""
    cost = stage_figures(plan.stage).cost
    return cost.inter_s.gradient_sync + cost.intra_s.gradient_sync


def figure_17(graphs: Graphs) -> Rows:
    """Rows by speed on 8 V100 and 8 P100."""
    words = dataclasses.replace(WORDS, overlap=True, micro_batches=1)
    cases = (
        ("resnet", A_DEVICE, IMAGES), ("resnet", 2 * A_DEVICE, IMAGES),
        ("bert_large", A_DEVICE // 2, words), ("bert_large", A_DEVICE, words),
    )  # fmt: skip
    for name, each, options in cases:
        graph, where = graphs(name, 16 * each), both(8)
        even, chosen = (by_data(graph, where, options, by_speed) for by_speed in (False, True))
        free = find_plan(graph, where, options)
        for plan, what in ((chosen, "by speed"), (free, "our plan")):
            case = f"Fig. 17, {name}, {each} rows a GPU"
            shares = ":".join(map(str, plan.stage.shares))
            yield Row(case, f"DP, equal / {what} ({shares})", "1.3 to 1.4",
                      seconds(even) / seconds(plan), 1.3)  # fmt: skip


def figure_18(graphs: Graphs) -> Rows:
    """Four stages on 4 V100 and 4 P100: as many layers in each, or as are fastest."""
    cuts = {
        "bert_large": [f"blocks.{n}" for n in (6, 12, 18)],
        "t5_large": ["encoder.12", "decoder.0", "decoder.12"],
    }
    for name, begins in cuts.items():
        graph, where = graphs(name, 8 * A_DEVICE), both(4)
        own = dataclasses.replace(WORDS, stages=4, micro_batches=16)
        even = find_plan(graph, where, dataclasses.replace(
            own, hints=dict.fromkeys(begins, "stage()")))  # fmt: skip
        chosen = find_plan(graph, where, own)
        yield Row(f"Fig. 18, {name}", "equal layers / by speed", "1.2",
                  seconds(even) / seconds(chosen), 1.2)  # fmt: skip


def figure_19(graphs: Graphs) -> Rows:
    """M6-10B in 8 stages of 35 micro-batches, on 8 and on 32 hosts."""
    rates = {}
    for hosts in (8, 32):
        graph = graphs("m6_10b", 35 * 8 * hosts)
        own = dataclasses.replace(
            WORDS, optimizer="sgd", stages=8, micro_batches=35, checkpointing="all", schedule="1f1b"
        )
        plan = find_plan(graph, v100(hosts), own)
        rates[hosts] = graph.batch / seconds(plan)
        yield Row(f"Fig. 19, M6-10B, {hosts} hosts", "memory of the fullest device", "fits",
                  f"{max(figures(plan).memory_bytes) / 1e9:.1f} GB of 32")  # fmt: skip
    yield Row("Fig. 19, M6-10B", "32 hosts / (4 x 8 hosts)", "0.91", rates[32] / (4 * rates[8]),
              0.91)  # fmt: skip


def giants(graphs: Graphs) -> Rows:
    """Experts in every layer: 1e11 parameters on 128 devices and 1e12 on 480, 8 rows a device."""
    for name, hosts in (("m6_moe_100b", 16), ("m6_moe_1t", 60)):
        graph = graphs(name, 8 * 8 * hosts)
        own = PlanOptions(optimizer="sgd", precision="float16", baselines=False, overlap=False)
        started = time.process_time()
        plan = find_plan(graph, v100(hosts), own)
        spent_s = time.process_time() - started
        case = f"{name}, {8 * hosts} V100"
        yield Row(case, "memory of a device", "fits",
                  f"{max(figures(plan).needed_bytes) / 1e9:.1f} GB of 32")  # fmt: skip
        bound = plan.stage.search.lower_bound_s or 0.0
        yield Row(case, "a step", "", f"{seconds(plan):.3f} s, no plan takes less than {bound:.3f}")
        if hosts == 16:
            yield Row(case, "days for 100 million rows", "1.5",
                      1e8 * seconds(plan) / graph.batch / 86400)  # fmt: skip
        yield Row(case, "CPU seconds of planning", "", spent_s, at_most=10.0)


FIGURES = {
    own.__name__: own
    for own in (figure_11, figure_12, figures_13_to_16, figure_17, figure_18, figure_19, giants)
}


def traced(folder: Path | None) -> Graphs:
    """Models traced when they are asked for; kept in a folder if there is one."""
    known: dict[str, Graph] = {}

    def graph(name: str, batch: int) -> Graph:
        file = folder and folder / f"{name}.json"
        if name not in known and file is not None and file.exists():
            known[name] = Graph.load(file)
        if name not in known:
            from autoddl.runtime.oneflow.trace.job.meta import storage_free
            from autoddl.runtime.oneflow.trace.trace import trace
            from benchmarks import whale_models

            with storage_free():
                model, example, loss = getattr(whale_models, name)(batch)
            known[name] = trace(model, *example, loss=loss)
            if file is not None:
                known[name].save(file)
        return known[name].with_batch(batch)

    return graph


def table(told: Mapping[str, Any]) -> list[str]:
    """In Markdown."""
    lines = [
        "| case | what | paper | predicted | asked | holds |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name in FIGURES:
        for own in told.get(name, {"rows": []})["rows"]:
            row = Row(**own)
            value = row.predicted if isinstance(row.predicted, str) else f"{row.predicted:.2f}"
            least = "" if row.at_least is None else f"at least {row.at_least:g}"
            most = "" if row.at_most is None else f"at most {row.at_most:g}"
            lines.append(
                f"| {row.case} | {row.what} | {row.paper} | {value} | {least}{most} | {row.holds} |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Whale's evaluation, predicted.")
    parser.add_argument("--only", default="", help="price the figures with this in their names")
    parser.add_argument("--graphs", type=Path, help="folder in which traced graphs are kept")
    options = parser.parse_args()
    file, graphs = RESULTS / "whale.json", traced(options.graphs)
    told = json.loads(file.read_text()) if file.exists() else {}
    for name, figure in FIGURES.items():
        if options.only not in name:
            continue
        rows = []
        for row in figure(graphs):
            rows.append(dataclasses.asdict(row))
            print(row, flush=True)
        told[name] = {"date": datetime.date.today().isoformat(), "rows": rows}
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(told, indent=1) + "\n")
        text = (__doc__ or "").split("\n\n", 2)[2].strip()
        lines = ["# Whale's evaluation, predicted", "", text, "", *table(told), ""]
        write_atomically(RESULTS / "whale.md", "\n".join(lines))


if __name__ == "__main__":
    main()
