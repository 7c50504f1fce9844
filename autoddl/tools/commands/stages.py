"""Output of plans with pipeline stages, for `autoddl plan` and `autoddl explain`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...plans import Plan
    from ...plans.staged import StagedPlan


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
