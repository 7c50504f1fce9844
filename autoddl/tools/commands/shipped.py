"""`autoddl machines` and `autoddl models`: what comes with autoddl, by name."""

from __future__ import annotations

import sys

import click

from .options import examples

_LONGEST = 1000  # characters of a line where nothing says how wide lines are


@click.command(epilog=examples("autoddl machines", "autoddl plan gpt.json --cluster gcp_a100"))
def machines() -> None:
    """List the machines that come with autoddl, by the names that --cluster takes.

    Each is a file that can be copied and changed, in which `sources` says of each number where it
    comes from; the folder is printed, too.
    """
    from ...cluster import Cluster
    from ...cluster.spec import MACHINES
    from ...plans.format import format_bytes

    for file in sorted(MACHINES.glob("*.json")):
        found = Cluster.load(file)
        device = found.device
        origin = "measured" if found.calibration else "estimated"
        click.echo(
            f"{file.stem:10}  {found.nodes} x {found.gpus_per_node} {device.kind}, "
            f"{format_bytes(device.memory_bytes)} each, {origin}"
        )
    click.echo(f"The files are in {MACHINES}.")


@click.command(epilog=examples("autoddl models", "autoddl plan gpt_small --cluster laptop"))
def models() -> None:
    """List the models that come with autoddl, by the names that MODEL stands for."""
    from ...plans.report.terminal import width_of
    from ...runtime.entry import shipped

    width, below = width_of(sys.stdout) or _LONGEST, 15 * " "
    for name, summary in shipped().items():
        click.echo(click.wrap_text(f"{name:13}  {summary}", width, subsequent_indent=below))
    note = (
        "They are OneFlow's and need it. One of your own, of either framework, is named as "
        "module:function; what the function returns, 'autoddl --help' says."
    )
    click.echo(click.wrap_text(note, width))
