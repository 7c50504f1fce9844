"""`autoddl export`: a plan for others to run; parsing only."""

from __future__ import annotations

import click

from ..outputs import check_apart
from .options import examples


@click.command(epilog=examples("autoddl export plan.json -o parallel.py"))
@click.argument("plan")
@click.option("-o", "--output", required=True, metavar="FILE", help="The Python file to write.")
def export(plan: str, output: str) -> None:
    """Write PLAN as a file of Python that needs PyTorch alone.

    Its function `parallelize(model)` applies DistributedDataParallel, fully_shard and
    parallelize_module on as many processes as the plan is for. A plan that these cannot do is
    refused, with what it does.
    """
    from ..at_work import at_work

    check_apart({"PLAN": plan}, output=output)
    with at_work(f"reading {plan}"):  # imports take a second, too
        from ..._files import write_atomically
        from ...plans import Plan
        from ...plans.torch_styles import torch_styles

        text = torch_styles(Plan.load(plan))
    write_atomically(output, text.rstrip("\n"))
    click.echo(f"wrote {output}; call its parallelize(model) on every process")
