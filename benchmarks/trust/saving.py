"""What saving costs: seconds of a step beside which a checkpoint is written, and memory.

    python -m benchmarks.trust.saving [--rounds N] [--millions N]

Seconds: blocks of steps with one save beside them (`wait=False`) and without, in turns, on two
ranks; the ratio of each pair of blocks counts. Memory: of four ranks that hold a quarter of a model
each, the anonymous and the mapped bytes while they save it, and while they load it by another plan.
Writes benchmarks/results/trust/saving.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoddl.runtime.jobs.launch import run_processes
from benchmarks.trust.results import save, where_and_when

ROOT = Path(__file__).parents[2]
STEPS = 10  # of a block
_LOOK_S = 0.002
_SIDE, _ROWS, _LAYERS = 1448, 896, 4  # of the model whose seconds are measured
_KINDS = {"seconds": "seconds of the clock", "work": "processor seconds"}
_WIDE = 4096  # of the model whose memory is measured


def worker_seconds(folder: Path, rounds: int) -> None:
    """A rank of the first part: prints a JSON line with the seconds of each block."""
    import oneflow as flow

    import autoddl

    nn = flow.nn
    layers: list[Any] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(_SIDE, _SIDE), nn.ReLU()]
    flow.manual_seed(0)
    batch = flow.randn(_ROWS, _SIDE), flow.randn(_ROWS, _SIDE)
    trainer = autoddl.parallelize(
        nn.Sequential(*layers),
        autoddl.Cluster.load("laptop").with_shape(1, 2),
        example=batch,
        loss=nn.MSELoss(),
        optimizer=lambda p: flow.optim.Adam(p, lr=1e-4),
        micro_batches=2,
    )
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    work: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(2 * rounds + 2):
        # each kind is first in half of the pairs
        kind = ("with", "without")[(number + number // 2) % 2]
        began, worked = time.perf_counter(), time.process_time()
        for step in range(STEPS):
            if kind == "with" and step == 0:
                trainer.save(folder, keep=1, wait=False)
            float(trainer.step(*batch))
        if number >= 2:  # the first pair warms up
            seconds[kind].append(time.perf_counter() - began)
            work[kind].append(time.process_time() - worked)
    trainer.save(folder, keep=1)
    if trainer.is_main:
        files = (path for place in folder.glob("step-*") for path in place.iterdir())
        told = {"seconds": seconds, "work": work}
        print(json.dumps({**told, "bytes": sum(p.stat().st_size for p in files)}), flush=True)


class Memory:
    """Watches how much this process has above what it had: bytes of its own, and mapped."""

    def __init__(self) -> None:
        self.own = self.mapped = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        before, done = _held(), threading.Event()

        def look() -> None:
            while not done.wait(_LOOK_S):
                own, mapped = _held()
                self.own = max(self.own, own - before[0])
                self.mapped = max(self.mapped, mapped - before[1])

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _held() -> tuple[int, int]:
    """(Anonymous, file) resident bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return int(found["RssAnon"]) * 1024, int(found["RssFile"]) * 1024


def worker_memory(folder: Path, millions: int) -> None:
    """A rank of the second part: prints a JSON line with its bytes."""
    import oneflow as flow

    import autoddl
    from autoddl.runtime.oneflow.models.blank import blank

    nn = flow.nn
    count = max(2, round(millions * 1e6 / _WIDE**2))
    batch = flow.ones(8, _WIDE), flow.ones(8, _WIDE)
    told: dict[str, Any] = {"rank": int(os.environ["RANK"])}

    def trainer_of(nodes: int, gpus: int, placement: str) -> Any:
        layers = [nn.Linear(1, 1, bias=False) for _ in range(count)]
        for layer in layers:  # values that share one element: no rank holds the model
            layer.weight = nn.Parameter(blank(_WIDE, _WIDE))
        hints = {str(number): placement for number in range(count)}
        return autoddl.parallelize(
            nn.Sequential(*layers),
            autoddl.Cluster.load("laptop").with_shape(nodes, gpus),
            example=batch,
            loss=nn.MSELoss(),
            optimizer=lambda p: flow.optim.SGD(p, lr=1e-4),
            memory_limit_bytes=float("inf"),
            zero=False,
            hints=hints,
        )

    def shard(trainer: Any) -> int:
        locals_ = (p.to_local() for p in trainer.parameters().values())
        return sum(x.numel() * 4 for x in locals_)

    trainer = trainer_of(2, 2, "split(4, dim=1)")
    told["shard"] = shard(trainer)
    for wait in (True, False):
        memory = Memory()
        with memory.watching():
            trainer.save(folder, keep=1, wait=wait)
            if not wait:
                time.sleep(5)
        told["save" if wait else "save beside"] = [memory.own, memory.mapped]
    del trainer
    other = trainer_of(1, 4, "split(4, dim=0)")
    told["other shard"] = shard(other)
    memory = Memory()
    with memory.watching():
        other.load(folder)
    told["load"] = [memory.own, memory.mapped]
    print(json.dumps(told), flush=True)


def job(kind: str, ranks: int, argument: int) -> list[dict]:
    """What the ranks of a part have printed."""
    home = Path(tempfile.mkdtemp(prefix="autoddl-saving-"))
    try:
        with open(home / "output.txt", "w+") as out:
            words = [__file__, "--worker", kind, str(home / "checkpoints"), str(argument)]
            env = {"PYTHONPATH": str(ROOT), "GLOG_minloglevel": "3"}
            status = run_processes(words, ranks, env, output=out, prefix=False)
            out.seek(0)
            text = out.read()
        assert status == 0, text
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    finally:
        shutil.rmtree(home)


def table(found: dict) -> str:
    timed, memory = found["timed"], found["memory"]
    lines = [
        "# What saving costs",
        "",
        f"`make bench-saving`. {where_and_when(found['about'])}",
        "",
        "## Seconds",
        "",
        f"Two ranks, {len(timed['work']['with'])} pairs of blocks of {STEPS} steps, in turns with "
        f"one asynchronous save of {timed['bytes'] / 1e6:.0f} MB (parameters and Adam's state) and "
        "without. Seconds of the clock have in them what else the machine had to do; processor "
        "seconds are of all threads of rank 0, those that write too.",
        "",
        f"| | a step without, median | with a save every {STEPS} steps | ratio of a pair, median | "
        "quarter, three quarters |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(_row(words, timed[kind]) for kind, words in _KINDS.items()),
        "",
        "## Memory",
        "",
        f"Four ranks, {found['millions']} million parameters in float32, of which each rank has a "
        "quarter; the most of any rank above what it held before, its own bytes, and beside them "
        "those of files that it reads through the page cache, which the system may take back at "
        f"any time. A tensor's part of a rank, which is the buffer, has {_WIDE**2 / 1e6:.1f} MB.",
        "",
        "| | a rank's shard | own bytes above | of the shard | file pages |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ("save", "save beside", "load"):
        shard = max(one["other shard" if name == "load" else "shard"] for one in memory)
        own, mapped = (max(one[name][n] for one in memory) for n in (0, 1))
        said = {"load": "loading on 1x4 what 2x2 saved", "save beside": "saving, asynchronously"}
        lines.append(
            f"| {said.get(name, 'saving')} | {shard / 1e6:.0f} MB | {own / 1e6:.0f} MB "
            f"| {own / shard:.2f} | {mapped / 1e6:.0f} MB |"
        )
    return "\n".join(lines)


def _row(words: str, found: dict) -> str:
    ratios, middle = _ratios(found), statistics.median
    return (
        f"| {words} | {middle(found['without']) / STEPS:.3f} s "
        f"| {middle(found['with']) / STEPS:.3f} s | {middle(ratios):.3f} "
        f"| {' to '.join(f'{q:.3f}' for q in _quarters(ratios))} |"
    )


def _ratios(seconds: dict) -> list[float]:
    return [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]


def _quarters(ratios: list[float]) -> tuple[float, float]:
    if len(ratios) < 4:
        return min(ratios), max(ratios)
    first, _, third = statistics.quantiles(ratios)
    return first, third


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--millions", type=int, default=1000)
    asked = parser.parse_args()
    memory = job("memory", 4, asked.millions)
    (timed,) = job("seconds", 2, asked.rounds)
    found = {"timed": timed, "memory": memory, "millions": asked.millions}
    save("saving", found, table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        kind, folder, argument = sys.argv[2:]
        {"seconds": worker_seconds, "memory": worker_memory}[kind](Path(folder), int(argument))
    else:
        main()
