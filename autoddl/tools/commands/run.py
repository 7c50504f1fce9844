"""`autoddl run`: a script of the user's as the ranks of a job; parsing only."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from .options import ask_first, examples

_PORT = 29500  # as torchrun's
_OTHER_HOSTS_SECONDS = 3.0  # for the ranks of a lost job to end on the other hosts


@click.command(
    epilog=examples(
        "autoddl run --gpus-per-node 4 train.py --epochs 2",
        "autoddl run --nodes 2 --node-rank 0 --gpus-per-node 4 --master-addr host0 \\",
        "    --max-restarts 3 train.py",
        "python -m oneflow.distributed.launch --nproc_per_node 4 -m autoddl run train.py",
    ),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--gpus-per-node", type=click.IntRange(1), help="Processes of each host.")
@click.option("--nodes", type=click.IntRange(1), help="Hosts, each of which is started so.")
@click.option("--node-rank", type=click.IntRange(0), help="This host's number, from 0.")
@click.option("--master-addr", metavar="HOST", help="Host 0, as the others know it.")
@click.option("--master-port", type=click.IntRange(1, 65535), help=f"A port there ({_PORT}).")
@click.option(
    "--max-restarts", type=click.IntRange(0),
    help="Start a job that fails again so often; the script goes on from its last checkpoint.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Start more than 4 processes per core without asking.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str, args: tuple[str, ...], yes: bool, **options: Any) -> None:
    """Run SCRIPT (or -m MODULE) as the processes of a job, with ARGS.

    A job is watched from its first moment, whatever its script imports first: a rank that fails,
    stops or never comes is named, and ends it. With several hosts, start this on each of them, with
    equal options but --node-rank; AUTODDL_SECRET, the same on all, keeps strangers out. A process
    that another launcher has started becomes the script, and is watched, too.
    """
    from ...runtime.jobs.guard import become
    from ...runtime.jobs.launch import Part, crowd, is_launched, run_processes, starts_again

    if not script.startswith("-") and not Path(script).is_file():
        raise ValueError(f"{script}: no such file; give a Python script, or -m and a module")
    given = {name: value for name, value in options.items() if value is not None}
    words = [script, *args]
    if is_launched() and os.environ["RANK"] != "-1":  # as OneFlow has it without a launcher
        if given:
            raise ValueError(f"a launcher has started this rank; leave out {_names(given)}")
        become([sys.executable, "-u", *words])
    if "gpus_per_node" not in given:
        raise ValueError("--gpus-per-node is needed: how many processes run on this host")
    if given.get("nodes", 1) == 1 and (own := _several(given)):
        raise ValueError(f"{_names(own)}: for a job on several hosts, which --nodes says")
    if not yes and (many := crowd(given["gpus_per_node"])):
        ask_first(many)
    part = None
    if given.get("nodes", 1) > 1:
        if missing := {"node_rank", "master_addr"} - set(given):
            raise ValueError(f"a job on several hosts needs {_names(missing)}")
        port = given.get("master_port", _PORT)
        part = Part(given["nodes"], given["node_rank"], given["master_addr"], port)
    for left in range(given.get("max_restarts", 0), -1, -1):
        status = run_processes(words, given["gpus_per_node"], part=part)
        if not starts_again(status, left):
            sys.exit(status)
        time.sleep(_OTHER_HOSTS_SECONDS if part else 0.0)


def _several(given: Any) -> set[str]:
    return {"node_rank", "master_addr", "master_port"} & set(given)


def _names(options: Any) -> str:
    return ", ".join(sorted(f"--{name.replace('_', '-')}" for name in options))
