"""The `autoddl` command: parses arguments, calls, prints. Imports are late, for quick help."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..planner.options import PlanOptions, paused_collector
from .commands.box import box
from .commands.calibrate import calibrate
from .commands.compare import compare
from .commands.diff import diff
from .commands.export import export
from .commands.memory import memory
from .commands.options import (
    BATCH,
    CLUSTER,
    JSON,
    MODEL,
    NOTATION,
    ask_first,
    examples,
    graph_of,
    load_cluster,
    plan_options,
    reads,
    shape_options,
    traced,
)
from .commands.run import run
from .commands.schema import schema
from .commands.shipped import machines, models
from .errors import Errors, plain
from .outputs import check_apart

if TYPE_CHECKING:
    from ..plans import Plan
    from ..plans.report.changes import Change
    from ..plans.report.sections import Notation


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="autoddl")
def main(debug: bool) -> None:
    """Plan and run parallel training of models of OneFlow and PyTorch.

    A MODEL is module:function, a function that returns (model, example, loss); one of those that
    'autoddl models' lists; or hf:config.json (hf:config.json:4096 for rows of 4096 tokens), the
    configuration of a model of Hugging Face. 'autoddl COMMAND --help' shows examples.
    """
    del debug
    # OneFlow's log on stderr: by default only what ends the process.
    os.environ.setdefault("GLOG_minloglevel", "3")
    # to look once more, at the end, for what could be freed is a 14th of a short plan's time
    atexit.register(gc.freeze)


main.add_command(box)
main.add_command(calibrate)
main.add_command(compare)
main.add_command(diff)
main.add_command(export)
main.add_command(machines)
main.add_command(memory)
main.add_command(models)
main.add_command(run)
main.add_command(schema)


@main.command(
    epilog=examples(
        "autoddl trace gpt_small -o gpt.json",
        "autoddl trace vgg13 --batch 128 -o vgg.json",
    )
)
@MODEL
@click.option("-o", "--output", required=True, metavar="FILE", help="The graph file to write.")
@BATCH
def trace(model: str, output: str, batch: int | None) -> None:
    """Trace MODEL, without allocating its parameters, and save its graph.

    The graph can be planned anywhere, without OneFlow.
    """
    from .at_work import at_work

    check_apart(reads(MODEL=model), output=output)
    with paused_collector(), at_work(f"tracing {model}", first_s=0):
        graph = traced(model, batch)
    graph.save(output)
    count = sum(graph.tensors[op.outputs[0]].spec.numel for op in graph.params)
    found = f"{len(graph.ops)} operators, {count:,} parameters, batch {graph.batch}"
    click.echo(f"{plain(output)}: {found}")


@main.command(
    epilog=examples(
        "autoddl plan gpt_small --cluster laptop",
        "autoddl plan gpt.json --cluster piz_daint --nodes 64 -o plan.json",
        "autoddl plan vgg13 --cluster gcp_a100 --json",
        "autoddl plan gpt.json --cluster laptop --stages 2 --schedule eager-1f1b",
        "autoddl plan gpt.json --cluster laptop --search integer --budget-seconds 60",
        "autoddl plan gpt.json --cluster gcp_a100 --nodes 128 --gap 1%",
        "autoddl plan hf:config.json --batch 1024 --cluster gcp_a100",
    )
)
@MODEL
@CLUSTER
@shape_options
@BATCH
@plan_options()
@click.option("-o", "--output", metavar="FILE", help="The plan file to write.")
@NOTATION
@JSON
def plan(
    model: str,
    cluster_file: str,
    nodes: int | None,
    gpus_per_node: int | None,
    batch: int | None,
    output: str | None,
    notation: Notation,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the parallel plan of MODEL, which may also be a graph file, for a cluster."""
    from .at_work import at_work

    started, chosen = time.perf_counter(), PlanOptions(**options)
    check_apart(reads(MODEL=model, cluster=cluster_file), output=output)
    what = f"planning {model} on {cluster_file}"
    # imports take a second, too, and make many objects that stay
    with paused_collector(), at_work(what, budget_s=chosen.budget_seconds):
        from .. import api
        from ..plans.report import report
        from .show import show

        cluster = load_cluster(cluster_file, nodes, gpus_per_node)
        graph = graph_of(model, batch)
        found = api.plan(graph, cluster, chosen.later(time.perf_counter() - started))
        if output is not None:
            found.save(output)
        shown = report(found, brief=not as_json)
    show(shown, as_json, brief=True, notation=notation)


@main.command(
    epilog=examples(
        "autoddl explain plan.json",
        "autoddl explain plan.json --layer blocks.0.qkv",
        "autoddl explain plan.json --suggest",
        "autoddl explain plan.json --json",
        "autoddl explain plan.json --html plan.html --png plan.png",
        "autoddl explain staged.json --timeline timeline.png --trace trace.json",
    )
)
@click.argument("plan_file", metavar="PLAN")
@click.option("--layer", help="Only the layer of this name.")
@click.option("--html", metavar="FILE", help="Write the plan as one page that needs no other file.")
@click.option("--png", metavar="FILE", help="Write a picture of that page; needs Chromium.")
@click.option(
    "--suggest", is_flag=True, help="Also plan anew for other links, batches, memory and devices."
)
@click.option("--timeline", metavar="FILE", help="Write when each pass runs: a picture (PNG).")
@click.option("--trace", metavar="FILE", help="Likewise, for Perfetto or Chrome (JSON).")
@NOTATION
@JSON
def explain(
    plan_file: str,
    layer: str | None,
    suggest: bool,
    html: str | None,
    png: str | None,
    timeline: str | None,
    trace: str | None,
    notation: Notation,
    as_json: bool,
) -> None:
    """Say in words and numbers why the plan in PLAN is as it is.

    With --json the same object as of `plan --json`, and with --layer that layer's.
    """
    from .at_work import at_work

    check_apart(reads(PLAN=plan_file), html=html, png=png, timeline=timeline, trace=trace)
    with at_work(f"reading {plan_file}"):  # imports take a second, too
        from ..plans import Plan
        from ..plans.report.contents import layer_report, report
        from .show import show

        found = Plan.load(plan_file)
    pictures = any(path is not None for path in (html, png, timeline, trace))
    if pictures and layer is not None:
        raise ValueError("the pages and pictures show the whole plan; leave --layer out")
    if suggest and layer is not None:
        raise ValueError("changes are of the whole plan; leave --layer or --suggest out")
    if suggest and not (as_json or html or png) and pictures:
        raise ValueError("pictures of a timeline show no changes; leave --suggest out")
    changes = _anew(found, suggest)
    if as_json or not pictures:
        with at_work(f"reading {plan_file}"):
            shown = report(found, changes) if layer is None else layer_report(found, layer)
        show(shown, as_json, notation=notation)
    with at_work(f"drawing {plan_file}"):
        _write_pictures(found, timeline, trace)
        if html is not None or png is not None:
            _write_page(found, changes, html, png)


def _anew(plan: Plan, suggest: bool) -> Sequence[Change]:
    """What other plans would bring, if that is asked for."""
    from .at_work import at_work
    from .suggest import planned_anew

    if not suggest:
        return ()
    with at_work(f"planning {plan.graph.name} anew"):
        return planned_anew(plan)


def _write_page(found: Plan, changes: Sequence[Change], html: str | None, png: str | None) -> None:
    """The plan as a page, and a picture of it."""
    from .._files import write_atomically
    from .report.browser import screenshot
    from .report.page import page

    text = page(found, changes)
    if html is not None:
        write_atomically(html, text)
    if png is not None:
        screenshot(text, png)


def _write_pictures(found: Plan, timeline: str | None, trace: str | None) -> None:
    """When each pass of the stages runs."""
    from ..plans.figures import figures
    from ..plans.schedule.timeline import save_picture, save_trace

    if timeline is not None:
        save_picture(figures(found).timeline, timeline, found.graph.name)
    if trace is not None:
        save_trace(figures(found).timeline, trace)


@main.command(
    "train",
    epilog=examples(
        "autoddl train gpt_small --cluster laptop --steps 10",
        "autoddl train gpt_small --cluster laptop --plan plan.json",
        "autoddl train gpt_small --cluster laptop --stages 2 --schedule eager-1f1b",
        "python -m oneflow.distributed.launch --nproc_per_node 4 --master_port 29500 \\",
        "    -m autoddl train gpt_small --cluster laptop",
    ),
)
@MODEL
@CLUSTER
@shape_options
@click.option("--plan", "plan_file", metavar="FILE", help="Run this plan instead of a new one.")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Learning rate.")
@click.option(
    "--profile",
    metavar="FILE",
    help="Then write when each task of a step ran, for Perfetto (JSON).",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Go on from the newest checkpoint there, and write more (the newest 2 stay).",
)
@click.option("--every", type=click.IntRange(1), help="Steps between checkpoints, by default 50.")
@click.option(
    "--max-restarts", type=click.IntRange(0), default=0, show_default=True,
    help="Start a job that fails again so often, from its last checkpoint. The machine file is read"
    " anew: with another number of devices there, the job is planned anew for these.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Start more than 4 processes per core without asking.")
@BATCH
@plan_options(without=("chunks",))
def train_command(
    model: str,
    cluster_file: str,
    nodes: int | None,
    gpus_per_node: int | None,
    plan_file: str | None,
    steps: int,
    lr: float,
    profile: str | None,
    checkpoint: str | None,
    every: int | None,
    max_restarts: int,
    yes: bool,
    batch: int | None,
    **options: Any,
) -> None:
    """Train MODEL on made-up data, one process per device of the cluster.

    Starts the processes itself, unless a launcher has started this one as a rank. The options of a
    plan are of a new one; with --plan only the seed and the optimizer count.
    """
    from .at_work import at_work

    chosen = PlanOptions(**options)
    check_apart(reads(MODEL=model, cluster=cluster_file, plan=plan_file), profile=profile)
    with at_work(f"reading {cluster_file}"):  # imports take a second, too
        from .train import TrainJob, train

        cluster = load_cluster(cluster_file, nodes, gpus_per_node)
    job = TrainJob(
        model, cluster, plan_file, steps, lr, batch, chosen, profile, checkpoint, every,
        max_restarts,
    )  # fmt: skip
    if not yes and (crowd := job.crowd()):
        ask_first(crowd)
    look = functools.partial(load_cluster, cluster_file, nodes, gpus_per_node)
    sys.exit(train(job, look))


@main.command(epilog=examples("autoddl doctor", "autoddl doctor --json"))
@JSON
def doctor(as_json: bool) -> None:
    """Report what is installed, what is missing and how to mend it."""
    from .at_work import at_work

    with at_work("looking at this machine", first_s=0):
        from . import doctor as checks
        from .show import show

        found = checks.examine()
    show(checks.report(found), as_json)
    sys.exit(1 if any(check.status == "fail" for check in found) else 0)
