"""`autoddl schema`: what stands in the JSON files that autoddl reads and writes."""

from __future__ import annotations

import json

import click

from .options import examples

# Importing them takes long
NAMES = ("plan", "graph", "calibration-record", "machine-file", "hint-file")


@click.command(epilog=examples("autoddl schema machine-file", "autoddl schema plan > plan.json"))
@click.argument("kind", type=click.Choice(NAMES))
def schema(kind: str) -> None:
    """Print the JSON schema of a KIND of file: each field, what it may be and what it means."""
    from ...cluster.spec import MACHINE_FILE
    from ...graph.graph import GRAPH_FILE
    from ...graph.hint_file import HINT_FILE
    from ...plans.plan import PLAN_FILE
    from ...runtime.measure.record import RECORD_FILE

    known = MACHINE_FILE, GRAPH_FILE, PLAN_FILE, RECORD_FILE, HINT_FILE
    files = {file.name: file for file in known}
    click.echo(json.dumps(files[kind.replace("-", " ")].schema(), indent=1))
