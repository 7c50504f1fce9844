"""Options and output of plans with pipeline stages, for `autoddl plan` and `autoddl explain`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ...planner.new_plan import Stages
    from ...plans import Plan
    from ...plans.staged import StagedPlan

Command = TypeVar("Command", bound=Callable[..., Any])
WHOLE_STAGES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1")
SCHEDULES = (*WHOLE_STAGES, "interleaved-1f1b")


def _number_or_auto(
    context: click.Context, option: click.Parameter, value: str | None
) -> Stages | None:
    """Refused before a model is traced for nothing."""
    if value is None or value == "auto":
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"a number or auto, got {value!r}", context, option)
    return int(value)


STAGES = click.option(
    "--stages", metavar="N|auto", callback=_number_or_auto,
    help="Cut the model into pipeline stages; auto: as many as pay.",
)  # fmt: skip


def schedule_option(schedules: Sequence[str]) -> Callable[[Command], Command]:
    return click.option(
        "--schedule", type=click.Choice(schedules), default="1f1b", show_default=True,
        help="Of the stages.",
    )  # fmt: skip


def stage_options(command: Command) -> Command:
    """--stages, --schedule, --delay and --chunks."""
    delay = click.option(
        "--delay", type=click.IntRange(0), help="Weight gradients so many backward passes late."
    )
    chunks = click.option(
        "--chunks", type=click.IntRange(1), default=1, show_default=True,
        help="Parts of the model on each stage, for interleaved-1f1b.",
    )  # fmt: skip
    return STAGES(schedule_option(SCHEDULES)(delay(chunks(command))))


def refuse_with_stages(**options: Any) -> None:
    """ValueError if one of these is given, which plans with stages do not heed."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise ValueError(f"{' and '.join(given)} cannot go with --stages; leave one of them out")


def show_any_plan(found: Plan | StagedPlan, as_json: bool) -> None:
    """The plan in words, or its figures as JSON."""
    from ...plans.summary import summary_json

    click.echo(json.dumps(summary_json(found), indent=1) if as_json else found.explain())


def explain_stages(found: StagedPlan, timeline: str | None, trace: str | None) -> None:
    """Words, or the files asked for."""
    from ...plans.schedule.timeline import save_picture, save_trace

    if timeline:
        save_picture(found.timeline, timeline, found.cut.graph.name)
    if trace:
        save_trace(found.timeline, trace)
    if not timeline and not trace:
        click.echo(found.explain())
