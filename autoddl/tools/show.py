"""Sections on stdout: for people, or as one JSON object."""

from __future__ import annotations

import json
import sys

import click

from ..plans.report.sections import Notation, Report
from ..plans.report.terminal import text


def show(
    shown: Report, as_json: bool = False, *, brief: bool = False, notation: Notation = "words"
) -> None:
    """Print a report. brief: its short account"""
    if as_json:
        click.echo(json.dumps(shown.to_json(), indent=1))
    else:
        click.echo(text(shown, brief=brief, styled=sys.stdout.isatty(), notation=notation))
