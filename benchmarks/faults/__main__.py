"""python -m benchmarks.faults [--only TEXT] [--every N] [--limit SECONDS]

A fault is a kind, on one rank of four or to its host's link, before the job meets, at its start, in
a step or between two, on one mesh or in stages, as four processes of one machine or in the box
(network namespaces with links; needs root, and nftables for links that lose packets). Each job runs
alone, with a limit of a few seconds without progress. Writes benchmarks/results/faults.json, and
the table faults.md of all that the file has. The exit status is that of the worst fault.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from autoddl.runtime.jobs.launch import STOPPED
from autoddl.tools.box.box import Box
from autoddl.tools.box.network import existing

from .cases import SHAPES, Fault, faults
from .running import Ended, run
from .table import table

LEFT_OUT = 3  # the status if time was over
GOLDEN = 0.618034
RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="those whose description contains this")
    parser.add_argument("--every", type=int, default=1, help="of these only each Nth")
    parser.add_argument("--limit", type=float, default=8.0, help="seconds without progress")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after them")
    parser.add_argument("--new", action="store_true", help="only those that the file has not")
    parser.add_argument("--logs", type=Path, help="a folder for what the jobs say")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    asked = parser.parse_args()
    # a shell has what it runs in the background ignore it, and so would the ranks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for folder in (asked.results, asked.logs):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    path = asked.results / "faults.json"
    known, began = read(path), time.monotonic()
    chosen = [fault for fault in faults() if asked.only in str(fault)]
    # any first part of this order has some of everything
    chosen = [fault for _, fault in sorted((n * GOLDEN % 1, one) for n, one in enumerate(chosen))]
    status = 0
    for fault in itertools.islice(chosen, 0, None, asked.every):
        if asked.new and fault in known:
            continue
        if time.monotonic() - began > asked.seconds:
            return LEFT_OUT
        one = tried(fault, asked.limit, asked.logs)
        if one.status in STOPPED and fault.kind not in ("SIGINT", "SIGTERM"):
            return one.status  # Ctrl-C, or SIGTERM to this program
        known[fault] = one
        status = status or int(not one.is_good)
        print(
            f"{'good' if one.is_good else 'BAD '} {one.seconds:6.1f} s  {one.status:4d}  {fault}: "
            f"{one.line[:300]}{f'  LEFT {one.left}' if one.left else ''}",
            flush=True,
        )
        order = {fault: number for number, fault in enumerate(faults())}
        every = sorted(known.values(), key=lambda one: order.get(one.fault, len(order)))
        path.write_text("[\n" + ",\n".join(json.dumps(one.as_words()) for one in every) + "\n]\n")
        (asked.results / "faults.md").write_text(table(every))
    return status


def read(path: Path) -> dict[Fault, Ended]:
    if not path.exists():
        return {}
    words = (Ended.of(one) for one in json.loads(path.read_text()))
    return {one.fault: one for one in words}


def tried(fault: Fault, limit_s: float, logs: Path | None) -> Ended:
    """The fault, in a job of its own, and what it has left."""
    with _box(fault) as box, tempfile.TemporaryDirectory() as folder:
        one = run(fault, limit_s, box, Path(folder), logs)
    return one.and_left(name for name in existing() if box and name in box.spec.namespaces)


@contextlib.contextmanager
def _box(fault: Fault) -> Iterator[Box | None]:
    """Where the fault's job runs, if not on this machine itself."""
    if not fault.mesh.startswith("box"):
        yield None
        return
    with Box(*SHAPES[fault.mesh], "4gbit", name=f"faults-{os.getpid()}") as box:
        yield box


if __name__ == "__main__":
    sys.exit(main())
