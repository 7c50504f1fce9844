"""`autoddl calibrate`: measured prices for a machine file; parsing only."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..outputs import check_apart
from .options import examples, reads


@click.command(
    epilog=examples(
        "autoddl calibrate --gpus-per-node 4 --output mine.json",
        "autoddl calibrate --gpus-per-node 2 --quick --output mine.json",
        "autoddl calibrate --refit --output mine.json",
        "autoddl calibrate --gpus-per-node 4 --output mine.json --model gpt_small",
        "python -m oneflow.distributed.launch --nnodes 2 --node_rank 0 --nproc_per_node 4 \\",
        "    --master_addr host0 --master_port 29500 -m autoddl calibrate --output mine.json",
    )
)
@click.option("--output", required=True, metavar="FILE", help="The machine file to write (JSON).")
@click.option("--name", help="Of the machine; otherwise the file's.")
@click.option("--nodes", type=click.IntRange(1), help="Hosts; otherwise as launched, or 1.")
@click.option(
    "--gpus-per-node", type=click.IntRange(1), help="Processes of a host; otherwise as launched."
)
@click.option(
    "--device", "device_kind", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
@click.option("--max-bytes", type=click.IntRange(1), help="Largest message (default 256 MB).")
@click.option("--factor", type=click.IntRange(2), help="From a size to the next (default 4).")
@click.option("--confidence", type=float, help="Of the medians' intervals (default 0.95).")
@click.option("--precision", type=float, help="Half the interval by the median (default 0.05).")
@click.option("--repeats", type=click.IntRange(1), help="Samples of each point; the paper's 1000.")
@click.option(
    "--budget",
    "budget_s",
    type=float,
    help="Seconds to measure the machine, and again for a --model (default 180).",
)
@click.option("--max-call", "call_s", type=float, help="Seconds of one collective (default 2).")
@click.option("--timeout", "timeout_s", type=float, help="Seconds a host may be silent (60).")
@click.option(
    "--device-from",
    metavar="FILE",
    multiple=True,
    help="Take the device from this machine file; of several, each for the hosts of one kind.",
)
@click.option(
    "--back-end",
    type=click.Choice(["oneflow", "torch"]),
    help="Whose collectives and operators; otherwise the model's, or OneFlow's.",
)
@click.option("--model", metavar="MODEL", help="Also time the operators of this model.")
@click.option("--batch", type=click.IntRange(1), help="Its batch; otherwise the model's own.")
@click.option("--point-to-point/--no-point-to-point", default=None, help="Also time transfers.")
@click.option("--quick", is_flag=True, help="About a minute: few sizes up to 4 MB, rough medians.")
@click.option(
    "--refit",
    "only_refit",
    is_flag=True,
    help="Fit again from the record alone, also of one that was interrupted.",
)
def calibrate(quick: bool, only_refit: bool, **options: Any) -> None:
    """Measure this machine's links and devices and write a machine file.

    Takes 3 minutes at most and the start of the processes (--budget): what is not measured then is
    said there, and the machine file is made of what was.
    Writes every median to NAME.measurements.json beside it; started again after an interruption,
    it goes on from there, also with a (further) --model. Under a launcher each process is one rank;
    otherwise all start here.
    """
    from ..at_work import at_work

    with at_work("preparing to measure"):  # imports take a second, too
        from ...runtime.measure.record import record_path
        from ..calibration.calibrate import QUICK, CalibrateJob, calibrate, plot_path, refit

    given = {name: value for name, value in options.items() if value is not None}
    job = CalibrateJob(**{**(QUICK if quick else {}), **given})
    for device_from in job.device_from or (None,):
        check_apart(
            reads(device_from=device_from, model=job.model),
            **{
                "output": job.output,
                "output's measurements": str(record_path(job.output)),
                "output's plot": str(plot_path(job.output)),
            },
        )
    if only_refit:
        refit(job)
        return
    sys.exit(calibrate(job))
