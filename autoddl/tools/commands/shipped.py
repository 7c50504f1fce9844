"""`autoddl machines` and `autoddl models`: what comes with autoddl, by name."""

from __future__ import annotations

import click

from .options import examples


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
    from ...runtime.entry import shipped

    for name, summary in shipped().items():
        click.echo(f"{name:13}  {summary}")
    click.echo(
        "They are OneFlow's and need it. One of your own, of either framework, is named as "
        "module:function; what the function returns, 'autoddl --help' says."
    )
