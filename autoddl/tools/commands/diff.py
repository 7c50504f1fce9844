"""`autoddl diff`: where two plans differ; parsing only."""

from __future__ import annotations

import json

import click

from .options import JSON, examples


@click.command(epilog=examples("autoddl diff a.json b.json", "autoddl diff a.json b.json --json"))
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@JSON
def diff(first: str, second: str, as_json: bool) -> None:
    """Show in which layers plan B differs from plan A, and what each difference costs.

    Seconds, bytes and memory are those of B less those of A.
    """
    from ...plans import Plan

    plans = Plan.load(first), Plan.load(second)
    if as_json:
        from ...plans.diff import to_json

        click.echo(json.dumps(to_json(*plans), indent=1))
        return
    from ..report.diff import print_difference

    print_difference(*plans)
