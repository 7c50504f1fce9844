"""Whale's evaluation (Jia et al., ATC 2022, section 5), predicted: `make bench-whale-paper`.

    python -m benchmarks.whale_paper [--only NAME] [--graphs FOLDER]

On the machine file `whale`: hosts with 8 V100 of 32 GB or 8 P100 of 16 GB and 50 Gb/s between them,
or as many of each as the figure has. Nothing is fitted: the file's numbers come from data sheets,
the ratio of the two rates from measurements of others (1.796).

The paper states neither its batches nor its optimizers; `whale_models` says what is taken for its
models. 32 rows a device are taken where nothing else is said (M6-10B: 8 of each of 35
micro-batches), SGD with momentum for ResNet50, Adam for the language models, and for Adafactor SGD,
whose memory is the same but for its factored moments. Steps overlap as they do by default, but for
those of the giants, whose certificates are of serial ones. GPipe runs blocks again, as published.
What Whale measured holds the framework's own costs, too; no prediction does.

Where less is predicted than was measured, as far as the model's numbers tell why:

- Figs. 13 and 15 on 8 GPUs: the paper does not say what links its V100 hosts have inside. Over
  NVLink computation hides the exchange of all gradients. Over PCIe, as the P100 hosts are taken to
  have it (rows so named), the hybrid is as far ahead as measured and further; SP2 on 8 GPUs is not
  as far behind SP1 even then, as its all-reduce of 256 x 100,000 scores takes 14 ms there.
- Fig. 17: the ratio of 1.796 was measured of whole models. The machine file has it for products;
  memory traffic, which bounds ResNet50 in part, has that of the data sheets, 1.23. With P100 slower
  by 1.796 in all (rows so named) ResNet50 gains what was measured. BertLarge of 16 rows is bound by
  its exchange. Of 32 rows it gains more than balance gives, as equal rows make P100 run blocks
  again.
- Fig. 18: in the best order for equal layers, P100 have the first ones and V100 those with the
  words' scores or the decoder's, which take longer, so that much is balanced: by the stages'
  forward seconds BertLarge could gain 1.18, T5 1.07 at most. In the order by memory, by which Whale
  places stages (section 3.3.2), P100 have these, and the gain is larger than measured.

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
from autoddl.plans.schedule.make import make_schedule
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.plans.stage_figures import stage_figures

RESULTS = Path(__file__).parent / "results" / "hetero"
A_DEVICE = 32  # rows
MACHINE = Cluster.load("whale")


def v100(hosts: int, gpus: int = 8, is_nvlink: bool = True) -> Cluster:
    """V100 hosts alone; with PCIe inside, as the P100 have, where the paper does not say."""
    found = MACHINE.of_group(0).with_shape(hosts, gpus)
    return found if is_nvlink else dataclasses.replace(found, intra=MACHINE.of_group(1).intra)


def both(gpus: int) -> Cluster:
    """A host of each kind."""
    return MACHINE.with_shape(gpus_per_node=gpus)


def slower_in_all(where: Cluster) -> Cluster:
    """P100 that are slower than V100 by the measured ratio whatever they do.

    It was measured of whole models; the machine file has it for products alone.
    """
    fast, slow = where.device_of(0), where.device_of(1)
    ratio = fast.flops_per_s["float32"] / slow.flops_per_s["float32"]
    traffic = fast.memory_bandwidth_bytes_per_s / ratio
    slow = dataclasses.replace(slow, memory_bandwidth_bytes_per_s=traffic)
    groups = where.groups[0], dataclasses.replace(where.groups[1], device=slow)
    return dataclasses.replace(where, groups=groups)


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
WORDS = PlanOptions(baselines=False, gap=0.001)


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
    rates: dict[int, float] = {}
    asked = dataclasses.replace(IMAGES, zero=False, hints={"fc": "split(dim=0)"})
    for hosts in (1, 2, 4):
        graph = graphs("resnet_100k", 8 * hosts * A_DEVICE)
        for is_nvlink in (True, False):
            where = v100(hosts, is_nvlink=is_nvlink)
            link = "" if is_nvlink else ", PCIe"
            yield from hybrid(graph, where, asked, f"100,000 classes, {8 * hosts} GPUs{link}")
        graph = graphs("resnet_1m", 8 * hosts * A_DEVICE)
        rates[hosts] = graph.batch / seconds(find_plan(graph, v100(hosts), asked))
    graph = graphs("resnet_1m", 8 * A_DEVICE)
    for optimizer in ("momentum", "adam"):
        own = dataclasses.replace(IMAGES, optimizer=optimizer, memory_limit_bytes=float("inf"))
        needed = max(figures(by_data(graph, v100(1), own)).needed_bytes)
        yield Row("Fig. 14, 1,000,000 classes, 8 GPUs", f"DP with {optimizer} needs",
                  "out of memory", f"{needed / 1e9:.1f} GB of 32")  # fmt: skip
    yield Row("Fig. 14, 1,000,000 classes", "32 GPUs / (4 x 8 GPUs)", "0.95",
              rates[4] / (4 * rates[1]), 0.95)  # fmt: skip


def hybrid(graph: Graph, where: Cluster, asked: PlanOptions, name: str) -> Rows:
    """Figs. 13, 15 and 16 on so many hosts: asked for with the classifier's columns split."""
    papers = {1: (1.13, 1.6, 0.06), 2: (1.66, None, None), 4: (2.43, 3.75, 0.10)}
    ahead, patterns, bridge = papers[where.nodes]
    plain, free = by_data(graph, where, IMAGES), find_plan(graph, where, IMAGES)
    whale = find_plan(graph, where, asked)
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
    paper = "6" if where.nodes == 4 else ""
    yield Row(f"Fig. 16, {name}", "DP's sync / the hybrid's communication", paper,
              sync.communication_s / cost.communication_s)  # fmt: skip


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
        for where, rates in ((both(8), ""), (slower_in_all(both(8)), ", all by 1.796")):
            graph = graphs(name, 16 * each)
            even, chosen = (by_data(graph, where, options, by_speed) for by_speed in (False, True))
            free = find_plan(graph, where, options)
            for plan, what in ((chosen, "by speed"), (free, "our plan")):
                case = f"Fig. 17, {name}, {each} rows a GPU{rates}"
                shares = ":".join(map(str, plan.stage.shares))
                yield Row(case, f"DP, equal / {what} ({shares})", "1.3 to 1.4",
                          seconds(even) / seconds(plan), 1.3)  # fmt: skip


def figure_18(graphs: Graphs) -> Rows:
    """Four stages on 4 V100 and 4 P100: as many layers in each, or as are fastest.

    Equal layers lie on their hosts in the best order for them, or the first on V100, as Whale puts
    devices in the order of their memory.
    """
    cuts = {
        "bert_large": [f"blocks.{n}" for n in (6, 12, 18)],
        "t5_large": ["encoder.12", "decoder.0", "decoder.12"],
    }
    for name, begins in cuts.items():
        graph, where = graphs(name, 8 * A_DEVICE), both(4)
        own = dataclasses.replace(WORDS, stages=4, micro_batches=16)
        equal = dataclasses.replace(own, hints=dict.fromkeys(begins, "stage()"))
        chosen_s = seconds(find_plan(graph, where, own))
        best_s = seconds(find_plan(graph, where, equal))
        for equal_s, order in ((best_s, "the best"), (by_memory_s(graph, where, equal), "memory")):
            yield Row(f"Fig. 18, {name}", f"equal layers, order by {order} / by speed", "1.2",
                      equal_s / chosen_s, 1.2)  # fmt: skip


def by_memory_s(graph: Graph, where: Cluster, equal: PlanOptions) -> float:
    """Seconds of four stages that hints cut, the first two on V100 and the others on P100.

    By the stages' own prices on each kind; what they do once a step is left out.
    """
    plans = [find_plan(graph, where.of_group(kind).with_shape(2), equal) for kind in (0, 1)]
    first, last = (figures(plan).pass_costs for plan in plans)
    forward, backward, weight = (
        (*getattr(first, name)[:2], *getattr(last, name)[2:])
        for name in ("forward", "backward", "weight")
    )
    moved = {flow: max(first.activation[flow], last.activation[flow]) for flow in last.activation}
    back = {flow: max(first.gradient[flow], last.gradient[flow]) for flow in last.gradient}
    costs = Costs(forward, backward, weight, moved, back)
    own = plans[0]
    made = make_schedule(own.schedule_name, 4, own.micro_batches, costs=costs)
    return simulate(made, costs).makespan_s


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
