"""Options and output of plans with pipeline stages, for `autoddl plan` and `autoddl explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..graph import Graph
    from ..plans import Plan
    from ..staged_plan import StagedPlan

Command = TypeVar("Command", bound=Callable[..., Any])
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "interleaved-1f1b")


def _number_or_auto(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """The option as it is; refused before a model is traced for nothing."""
    if value not in (None, "auto") and not str(value).isdecimal():
        raise click.BadParameter(f"a number or auto, got {value!r}", context, option)
    return value


def stage_options(command: Command) -> Command:
    """--stages, --schedule, --delay and --chunks."""
    stages = click.option(
        "--stages",
        metavar="N|auto",
        callback=_number_or_auto,
        help="Cut the model into pipeline stages; auto: as many as pay.",
    )
    schedule = click.option(
        "--schedule", type=click.Choice(SCHEDULES), default="1f1b", show_default=True,
        help="Of the stages.",
    )  # fmt: skip
    delay = click.option(
        "--delay", type=click.IntRange(0), help="Weight gradients so many backward passes late."
    )
    chunks = click.option(
        "--chunks", type=click.IntRange(1), default=1, show_default=True,
        help="Parts of the model on each stage, for interleaved-1f1b.",
    )  # fmt: skip
    return stages(schedule(delay(chunks(command))))


def refuse_with_stages(**options: Any) -> None:
    """ValueError if one of these is given, which plans with stages do not heed."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise ValueError(f"{' and '.join(given)} cannot go with --stages; leave one of them out")


def plan_stages(
    graph: Graph, cluster: Cluster, stages: str, schedule: str, **options: Any
) -> Plan | StagedPlan:
    """As `find_staged_plan`, for a number of `stages` or auto."""
    from ..staged_planner import find_staged_plan

    count = None if stages == "auto" else int(stages)
    return find_staged_plan(graph, cluster, stages=count, schedule=schedule, **options)


def show_any_plan(found: Plan | StagedPlan, as_json: bool) -> None:
    """The plan in words, or its figures as JSON."""
    from ..summary import summary_json

    click.echo(json.dumps(summary_json(found), indent=1) if as_json else found.explain())


def explain_stages(found: StagedPlan, timeline: str | None, trace: str | None) -> None:
    """Words, or the files asked for."""
    from ..pipeline.timeline import save_picture, save_trace

    if timeline:
        save_picture(found.timeline, timeline, found.cut.graph.name)
    if trace:
        save_trace(found.timeline, trace)
    if not timeline and not trace:
        click.echo(found.explain())
