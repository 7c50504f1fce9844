"""`autoddl compare`: our plan beside the known schemes; parsing only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ...planner.options import PlanOptions, paused_collector
from ..outputs import check_apart
from .options import (
    BATCH,
    CLUSTER,
    JSON,
    MODEL,
    NOTATION,
    examples,
    graph_of,
    load_cluster,
    plan_options,
    reads,
    shape_options,
)

if TYPE_CHECKING:
    from ...cluster import Cluster
    from ...graph.graph import Graph
    from ...planner.baselines import Chosen
    from ...plans.report.sections import Notation


@click.command(
    epilog=examples(
        "autoddl compare gpt_small --cluster laptop",
        "autoddl compare gpt_6_8b --cluster piz_daint --nodes 64 --stages",
        "autoddl compare vgg.json --cluster piz_daint --nodes 64 --plot bars.png",
    )
)
@MODEL
@CLUSTER
@shape_options
@BATCH
@plan_options(without=("baselines", "stages", "schedule", "delay", "chunks"))
@click.option(
    "--rival", is_flag=True,
    help="Ask OneFlow's own planner (nn.Graph's enable_auto_parallel) too; takes a while.",
)  # fmt: skip
@click.option(
    "--rival-seconds", type=float, default=300.0, show_default=True,
    help="After which OneFlow's planner is given up.",
)  # fmt: skip
@click.option(
    "--stages", is_flag=True, help="Also in pipeline stages: our plan, and Megatron; takes longer."
)
@click.option("--plot", metavar="FILE", help="Draw the bars (PNG, SVG or PDF); needs matplotlib.")
@NOTATION
@JSON
def compare(
    model: str,
    cluster_file: str,
    nodes: int | None,
    gpus_per_node: int | None,
    batch: int | None,
    rival: bool,
    rival_seconds: float,
    stages: bool,
    plot: str | None,
    notation: Notation,
    as_json: bool,
    **options: Any,
) -> None:
    """Price the known schemes beside our plan of MODEL, which may also be a graph file.

    Each scheme has its best topology and as few micro-batches as its memory allows; the options
    of the search are of our plan.
    """
    from ..at_work import at_work

    started, chosen = time.perf_counter(), PlanOptions(**options)
    check_apart(reads(MODEL=model, cluster=cluster_file), plot=plot)
    what = f"comparing plans of {model} on {cluster_file}"
    # imports take a second, too; a budget is of our plan alone
    with paused_collector(), at_work(what):
        from .. import compare as comparing
        from ..report.compare import comparison_report, figure_type, plot_comparison
        from ..show import show

        if plot is not None:
            figure_type()  # what is missing is said before the work
        cluster = load_cluster(cluster_file, nodes, gpus_per_node)
        graph = graph_of(model, batch)
        other = _rival(graph, cluster, chosen.optimizer, rival_seconds) if rival else None
        chosen = chosen.later(time.perf_counter() - started)
        found = comparing.compare(graph, cluster, chosen, rival=other, stages=stages)
        shown = comparison_report(found)
        if plot is not None:
            plot_comparison(found, plot)
    show(shown, as_json, notation=notation)


def _rival(graph: Graph, cluster: Cluster, optimizer: str, seconds: float) -> Chosen | str:
    """What OneFlow's planner chooses, or why it is not known."""
    from ...runtime.framework import need_oneflow

    need_oneflow("autoddl compare --rival")
    from ...runtime.oneflow.rival.choice import ask_oneflow

    try:
        return ask_oneflow(graph, cluster.mesh, optimizer, seconds)
    except ValueError as error:
        return str(error)
