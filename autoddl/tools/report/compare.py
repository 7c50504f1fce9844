"""A comparison of schemes as sections, and as bars."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ...graph.batch_norm import batch_norm_of
from ...plans import Plan
from ...plans.format import format_seconds, short_topology, written
from ...plans.report.contents import cluster_figures
from ...plans.report.figure_file import write_figure
from ...plans.report.machine import estimates_notes
from ...plans.report.notation import TOPOLOGY
from ...plans.report.sections import Column, Figure, Figures, Report, Row, Table
from ...plans.stage_figures import stage_figures
from ..compare import Comparison, Scheme, causes

# Parts of an iteration and their colours, which differ in lightness as well.
BUBBLE = "bubble"
PARTS = (
    ("computation", "#b8c4ce"),
    ("forward", "#2a6f97"),
    ("backward", "#61a5c2"),
    ("gradient sync", "#e07a5f"),
    (BUBBLE, "#e9e4d8"),
)
_TOPOLOGIES = 2  # of a scheme that are told: Megatron's columns and rows; chosen, not measured
COLUMNS = (
    Column("name", "scheme"),
    Column("topology", "split", notation="words"),
    Column("topologies", "topologies", notation="sbp"),
    Column("micro_batches", "micro-batches", "count"),
    Column("iteration_s", "a step", "seconds"),
    Column("times", "x ours", "times"),
    Column("compute_s", "comput.", "seconds"),
    Column("communication_s", "comm.", "seconds"),
    Column("hidden_s", "hidden", "seconds"),
    Column("forward_s", "forward", "seconds"),
    Column("backward_s", "backward", "seconds"),
    Column("gradient_sync_s", "gradients", "seconds"),
    Column("bubble", "bubble", "share"),
    Column("nic_bytes", "NIC", "bytes"),
    Column("memory_bytes", "memory", "bytes"),
    Column("why_not", "why not"),
)


def comparison_report(found: Comparison) -> Report:
    """One row a scheme, the fastest first, and what ours saves against the closest."""
    model, graph, closest = found.model, found.graph, found.closest
    cluster = model.cluster
    heading = Figures(
        "",
        "",
        (
            Figure("model", "", graph.name),
            Figure("batch", "", graph.batch),
            Figure("batch_norm", "", batch_norm_of(graph)),
            Figure("optimizer", "", model.optimizer),
            Figure("memory_limit_bytes", "", model.limit_bytes),
            Figure("closest", "", None if closest is None else closest.name),
        ),
    )
    rows = [_row(scheme, found.ours) for scheme in sorted(found.schemes, key=lambda s: s.seconds)]
    if not any(row.get("hidden_s") for row in rows):
        rows = [{**row, "hidden_s": None} for row in rows]
    none = "none of the known schemes can run" if found.is_whole else "no known scheme was priced"
    note = none if closest is None else _saved(found, closest)
    ended = () if found.is_whole else ("interrupted: not all known schemes were priced",)
    certificate = () if found.ours.plan is None else _certificate(found.ours.plan)
    notes = (note, *certificate, *ended, *estimates_notes(cluster))
    schemes = Table(
        "schemes", "Schemes", COLUMNS, tuple(rows), notes=notes, legend={"sbp": TOPOLOGY}
    )
    sections = (heading, cluster_figures(cluster), schemes)
    if closest is not None:
        less = found.reductions(closest).items()
        sections += (Figures("less_than_closest", "", tuple(Figure(k, "", v) for k, v in less)),)
    subtitle = f"batch {graph.batch}, {model.optimizer}"
    return Report(f"{graph.name} on {cluster}", subtitle, sections)


def _saved(found: Comparison, closest: Scheme) -> str:
    less = found.reductions(closest)
    words = (
        f"{_less(less['iteration_s'])} time",
        f"{_less(less['communication_s'])} communication time",
        f"{_less(less['nic_bytes'], 'fewer')} bytes through each NIC",
    )
    return f"the closest is {closest.name}; ours takes {', '.join(words)}"


def _certificate(ours: Plan) -> tuple[str, ...]:
    """How far from the best possible our plan is at most, where the search proves it."""
    gaps = [stage_figures(stage).gap for stage in ours.stages]
    if any(gap is None for gap in gaps):
        return ()
    whose = "the lower bound" if len(gaps) == 1 else "its lower bound, stage by stage"
    return (f"ours is within {written(max(filter(None, gaps), default=0.0), 'share')} of {whose}",)


def _less(share: float, word: str = "less") -> str:
    """0.2 -> '20.0% less'."""
    return f"{abs(share):.1%} {'more' if share < 0 else word}"


def _row(scheme: Scheme, ours: Scheme) -> Row:
    told: Row = {
        "name": scheme.name,
        "topology": scheme.topology,
        "topologies": _topologies(scheme),
        "fits": scheme.runs,
        "why_not": scheme.why,
        "memory_bytes": scheme.memory_bytes,
    }
    if not scheme.runs:
        return told
    cost = scheme.cost
    return {
        **told,
        "stages": scheme.stages,
        "bubble": scheme.bubble or None,
        "micro_batches": scheme.micro_batches,
        "iteration_s": scheme.seconds,
        "times": scheme.seconds / ours.seconds if ours.seconds else 1.0,
        "compute_s": cost.compute_s,
        "communication_s": cost.communication_s,
        "hidden_s": cost.hidden_s,
        **{f"{cause}_s": s for cause, s in causes(cost.inter_s, cost.intra_s).items()},
        "between_nodes_s": cost.inter_s.total,
        "inside_a_node_s": cost.intra_s.total,
        "nic_bytes": cost.nic_bytes.total,
        **{f"nic_{cause}_bytes": size for cause, size in causes(cost.nic_bytes).items()},
        "intra_bytes": cost.intra_bytes.total,
        **{f"intra_{cause}_bytes": size for cause, size in causes(cost.intra_bytes).items()},
    }


def _topologies(scheme: Scheme) -> str:
    """Those of most layers, as the paper writes them; "" of what cannot run."""
    stages = () if scheme.plan is None else scheme.plan.stages
    counts = Counter(layer.topology for stage in stages for layer in stage.layers)
    most = [short_topology(topology) for topology, _ in counts.most_common(_TOPOLOGIES)]
    others = len(counts) - len(most)
    return " and ".join(most) + (f", {others} more" if others else "")


def figure_type() -> Any:
    """Matplotlib's figures. ValueError without it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            f"a picture of the bars needs matplotlib (pip install matplotlib): {error}"
        ) from error
    return Figure


def plot_comparison(found: Comparison, file: str | Path) -> None:
    """Bars of the iteration's seconds by cause, one a scheme. ValueError without matplotlib."""
    schemes = [scheme for scheme in found.schemes if scheme.runs]
    figure = figure_type()(figsize=(10, 1.4 + 0.55 * len(schemes)), layout="constrained")
    axes = figure.subplots()
    names = [f"{scheme.name}\n{scheme.topology}" for scheme in schemes]
    left = [0.0] * len(schemes)
    for number, (part, colour) in enumerate(PARTS):
        widths = [part_seconds(scheme)[number] for scheme in schemes]
        if part == BUBBLE and not any(scheme.stages > 1 for scheme in schemes):
            continue
        axes.barh(names, widths, left=left, label=part, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, scheme in enumerate(schemes):
        axes.text(left[place], place, f" {format_seconds(scheme.seconds)}", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("predicted seconds of an iteration")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.suptitle(f"{found.graph.name} on {found.model.cluster}, batch {found.graph.batch}")
    write_figure(figure, file)


def part_seconds(scheme: Scheme) -> tuple[float, ...]:
    """The seconds of `PARTS`, in their order. Only of a scheme that can run.

    What is hidden beside computation is taken for gradients', and only then for what comes before.
    """
    cost = scheme.cost
    exposed, hidden_s = list(causes(cost.inter_s, cost.intra_s).values()), cost.hidden_s
    for number in reversed(range(len(exposed))):
        whole_s = exposed[number]
        exposed[number] = max(whole_s - hidden_s, 0.0)
        hidden_s -= whole_s - exposed[number]
    parts = (cost.compute_s, *exposed)
    return (*parts, max(scheme.seconds - sum(parts), 0.0))
