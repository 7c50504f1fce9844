"""`autoddl diff`: where two plans differ; parsing only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import JSON, NOTATION, examples

if TYPE_CHECKING:
    from ...plans.report.sections import Notation


@click.command(epilog=examples("autoddl diff a.json b.json", "autoddl diff a.json b.json --json"))
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@NOTATION
@JSON
def diff(first: str, second: str, notation: Notation, as_json: bool) -> None:
    """Show in which layers plan B differs from plan A, and what each difference costs.

    Seconds, bytes and memory are those of B less those of A.
    """
    from ..at_work import at_work

    with at_work(f"comparing {first} with {second}"):  # imports take a second, too
        from ...plans import Plan
        from ...plans.diff import report
        from ..show import show

        told = report(Plan.load(first), Plan.load(second))
    show(told, as_json, notation=notation)
