"""`autoddl box`: a cluster of network namespaces on this machine; parsing only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .options import JSON, examples

UP = examples(
    "autoddl box up 4 --gpus-per-node 2 --rate 200mbit",
    "autoddl box run train.py",
    "autoddl box run plan.json --steps 5",
    "autoddl box status",
    "autoddl box down",
)
RUN = examples(
    "autoddl box run train.py --epochs 2",
    "autoddl box run plan.json --steps 5 --json",
    "autoddl box run plan.json --emulate-compute 1e12",
)


@click.group(epilog=UP)
def box() -> None:
    """A cluster in a box: hosts as network namespaces, joined by links of a chosen rate.

    Needs root. Everything stays inside namespaces of its own; 'down' leaves nothing behind.
    """


@box.command(epilog=UP)
@click.argument("nodes", type=click.IntRange(1))
@click.option("--gpus-per-node", type=click.IntRange(1), default=1, show_default=True)
@click.option("--rate", default="1gbit", show_default=True, help="Of each host's link, each way.")
def up(nodes: int, gpus_per_node: int, rate: str) -> None:
    """Start a box of NODES hosts. It stays up until 'autoddl box down'."""
    from ..box import Box
    from ..box.box import DEFAULT_NAME

    started = Box(nodes, gpus_per_node, rate, DEFAULT_NAME)
    started.up(keep=True)
    click.echo(f"up: {started.spec}")


@box.command(
    epilog=RUN, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--timeout", type=float, help="Seconds after which the job is ended (status 124).")
@click.argument("script_or_plan")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(timeout: float | None, script_or_plan: str, args: tuple[str, ...]) -> None:
    """Run a script, or the model of a plan file on made-up data, as the ranks of the box.

    ARGS are the script's. With a plan file they are --steps N, --lr RATE, --json, and
    --emulate-compute RATE: instead of computing, each process waits as long as a device of so many
    FLOP/s would take; tensors, communication and order stay real.
    """
    from ..box import Box
    from ..train_plan import PlanJob

    if not Path(script_or_plan).is_file():
        raise ValueError(f"{script_or_plan}: no such file; give a Python script or a plan file")
    there = Box.find()
    command = [script_or_plan, *args]
    if script_or_plan.endswith(".json"):
        parsed = rank.make_context("autoddl box run", list(command))
        PlanJob(**parsed.params).check(there.spec.nodes, there.spec.gpus_per_node)
        command = ["-m", "autoddl", "box", "rank", *command]
    before = there.links()
    status = there.run(command, prefix=not script_or_plan.endswith(".json"), timeout=timeout)
    for index, (old, new) in enumerate(zip(before, there.links(), strict=True)):
        moved = new - old
        click.echo(
            f"host {index}: sent {moved.sent_bytes:,} bytes, received {moved.received_bytes:,}",
            err=True,
        )
    sys.exit(status)


@box.command(hidden=True)
@click.argument("plan_file")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Learning rate.")
@click.option(
    "--emulate-compute", type=float, metavar="RATE",
    help="Wait as long as a device of so many FLOP/s would compute, and compute nothing.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def rank(**options: Any) -> None:
    """One rank of 'autoddl box run PLAN': its model on made-up data."""
    from ..train_plan import PlanJob

    PlanJob(**options).run()


@box.command()
@JSON
def status(as_json: bool) -> None:
    """Show the box's hosts, their links' bytes and what runs there."""
    from ...plans.report.sections import Column, Figure, Figures, Report, Table
    from ..box import Box
    from ..box.network import processes
    from ..box.spec import format_rate
    from ..show import show

    there = Box.find()
    spec = there.spec
    hosts = [
        {
            "host": index,
            "address": spec.address(index),
            "sent_bytes": link.sent_bytes,
            "received_bytes": link.received_bytes,
            "processes": len(processes(spec.host(index))),
        }
        for index, link in enumerate(there.links())
    ]
    columns = (
        Column("host", "host", "count"),
        Column("address", "address"),
        Column("sent_bytes", "sent", "bytes"),
        Column("received_bytes", "received", "bytes"),
        Column("processes", "processes", "count"),
    )
    rate = tuple(map(format_rate, spec.rate)) if isinstance(spec.rate, tuple) else spec.rate
    whole = Figures("", "", (Figure("box", "", str(spec)), Figure("rate", "", rate)))
    table = Table("hosts", "Hosts", columns, tuple(hosts))
    show(Report(str(spec), "", (whole, table)), as_json)


@box.command()
def down() -> None:
    """Take the box down, with all that runs in it, and what crashed boxes have left."""
    from ..box.box import take_down

    removed = take_down()
    click.echo(f"down: {', '.join(removed)}" if removed else "no box was up")
