"""A run that is killed again and again, and goes on from its checkpoints on other devices.

    python -m benchmarks.trust.kills [--kills N] [--seed N] [--folder FOLDER]

Each life of the run is a job that saves beside training (`wait=False`) every third step; random
ranks of it get SIGKILL while it starts, while it trains, or while it saves. The next life has
another number of devices and another plan, or (the second half of the table) the same. Beside it
the run that nobody kills. Compared are the losses of all steps, also of those that were done again,
and the examples that each step had read. Writes benchmarks/results/trust/kills.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoddl.runtime.checkpoint.folder import checkpoints
from benchmarks.trust.results import save, where_and_when

ROOT = Path(__file__).parents[2]
ROWS, EXAMPLES, WIDTH, EVERY, KEEP = 12, 300, 768, 3, 2
SHAPES = ("2x2", "1x2 in stages", "1x3", "1x1")  # in turn, of the first part
LIMIT_SECONDS = 120.0  # of a life until something happens
LEAST, MOST = 1, 8  # steps until a life is killed
_LOOK_S = 0.001


@dataclass(frozen=True)
class Kill:
    """When a life ends: after `steps` of its own (0: while it starts), or in the save after them.

    late_s: after that moment
    ranks:  of the life, that are killed
    """

    when: str
    steps: int
    late_s: float
    ranks: tuple[int, ...]


def kills(count: int, shapes: Sequence[str], seed: int) -> Iterator[tuple[str, Kill]]:
    """The lives' shapes, each with its end."""
    rng = random.Random(seed)
    for life in range(count):
        shape = shapes[life % len(shapes)]
        size = devices(shape)
        when = rng.choice(("start", "step", "step", "save", "save", "save"))
        most_s = {"start": 8.0, "step": 0.2, "save": 0.08}[when]
        steps = 0 if when == "start" else rng.randint(LEAST, MOST)
        chosen = rng.sample(range(size), rng.choice((1, 1, 1, size)))
        yield shape, Kill(when, steps, rng.uniform(0, most_s), tuple(sorted(chosen)))


def devices(shape: str) -> int:
    nodes, gpus = shape.split()[0].split("x")
    return int(nodes) * int(gpus)


class Life:
    """One job of the run in `folder`."""

    def __init__(self, folder: Path, number: int, shape: str, steps: int, dropout: bool) -> None:
        self.folder, self.number = folder, number
        for left in folder.glob("pid-*"):
            left.unlink()
        words = [str(folder), str(number), shape, str(steps), str(int(dropout))]
        start = (
            "import sys; from autoddl.runtime.jobs.launch import run_processes; "
            "sys.exit(run_processes(sys.argv[2:], int(sys.argv[1])))"
        )
        with open(folder / "output.txt", "a") as out:
            self.job = subprocess.Popen(
                [sys.executable, "-c", start, str(devices(shape)), __file__, "--worker", *words],
                cwd=ROOT, stdout=out, stderr=out,
                env={**os.environ, "PYTHONPATH": str(ROOT), "GLOG_minloglevel": "3"},
            )  # fmt: skip

    def done(self) -> int:
        """Steps of this life so far."""
        return sum(one["life"] == self.number for one in records(self.folder))

    def wait_for(self, kill: Kill, ranks: int) -> None:
        """Until it is to be killed. AssertionError if it ends before."""
        end, before = time.monotonic() + LIMIT_SECONDS, set(_partial(self.folder))
        while True:
            assert self.job.poll() is None and time.monotonic() < end, self.told()
            started = len(list(self.folder.glob("pid-*"))) == ranks
            saves = kill.when != "save" or set(_partial(self.folder)) - before
            if started and saves and (kill.steps == 0 or self.done() >= kill.steps):
                break
            time.sleep(_LOOK_S)
        late = time.monotonic() + kill.late_s
        while time.monotonic() < late and (kill.steps or not self.done()):  # it starts, till then
            time.sleep(_LOOK_S)

    def kill(self, ranks: Sequence[int]) -> bool:
        """SIGKILL for them; whether a checkpoint was half-written then."""
        for rank in ranks:
            os.kill(int((self.folder / f"pid-{rank}").read_text()), signal.SIGKILL)
        return bool(_partial(self.folder))

    def ended(self) -> tuple[int, float]:
        """Its status, and how many seconds that took."""
        began = time.monotonic()
        status = self.job.wait(LIMIT_SECONDS)
        return status, time.monotonic() - began

    def told(self) -> str:
        return (self.folder / "output.txt").read_text()[-3000:]


def _partial(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob(".step-*"))


def records(folder: Path) -> list[dict]:
    """What rank 0 has said of each step; the last line may be half-written."""
    path = folder / "steps.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def whole_run(folder: Path, shape: str, steps: int, dropout: bool) -> list[dict]:
    """The run that nobody kills."""
    folder.mkdir(parents=True)
    life = Life(folder, 0, shape, steps, dropout)
    status, _ = life.ended()
    assert status == 0, life.told()
    return records(folder)


def killed_run(
    folder: Path, shapes: Sequence[str], count: int, steps: int, seed: int, dropout: bool
) -> list[dict]:
    """The kills, each with what was seen of it, and then the run to its end."""
    folder.mkdir(parents=True)
    seen = []
    for number, (shape, kill) in enumerate(kills(count, shapes, seed)):
        newest = max((_steps(place) for place in checkpoints(folder / "checkpoints")), default=0)
        life = Life(folder, number, shape, steps, dropout)
        life.wait_for(kill, devices(shape))
        half = life.kill(kill.ranks)
        status, seconds = life.ended()
        assert status not in (0, 124), (kill, life.told())
        own = [one["step"] for one in records(folder) if one["life"] == number]
        seen.append(
            {"life": number, "shape": shape, "when": kill.when, "ranks": kill.ranks, "half": half,
             "status": status, "seconds": seconds, "newest": newest, "own": own}
        )  # fmt: skip
        print(seen[-1], flush=True)
        assert not own or own[0] == newest + 1, "it went on from another checkpoint"
    life = Life(folder, count, shapes[count % len(shapes)], steps, dropout)
    status, _ = life.ended()
    assert status == 0, life.told()
    return seen


def _steps(place: Path) -> int:
    return int(place.name.partition("-")[2].removesuffix(".new"))


def compared(folder: Path, expected: list[dict]) -> dict[str, float]:
    """The killed run's steps beside those of the run that nobody killed."""
    found, by_step = records(folder), {one["step"]: one for one in expected}
    last = {one["step"]: one for one in found}
    read = [n for step in sorted(last) for n in last[step]["examples"]]
    should = [n for one in expected for n in one["examples"]]
    apart = [abs(one["loss"] / by_step[one["step"]]["loss"] - 1) for one in found]
    return {
        "steps": len(last),
        "done": len(found),
        "losses": max(apart),
        "lost": sum((Counter(should) - Counter(read)).values()),
        "repeated": sum((Counter(read) - Counter(should)).values()),
        "others": sum(a["examples"] != by_step[s]["examples"] for s, a in last.items()),
    }


def worker(folder: Path, life: int, shape: str, steps: int, dropout: bool) -> None:
    """A rank of a life."""
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    import numpy as np
    import oneflow as flow

    import autoddl

    nn = flow.nn
    flow.manual_seed(0)
    layers = [nn.Linear(32, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    model = nn.Sequential(*layers, *[nn.Dropout(0.1)] * dropout, nn.Linear(WIDTH, 4))
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((EXAMPLES, 32)).astype(np.float32)
    targets = rng.integers(0, 4, EXAMPLES)

    def batch(numbers: Sequence[int]) -> tuple[flow.Tensor, flow.Tensor]:
        return flow.tensor(inputs[list(numbers)]), flow.tensor(targets[list(numbers)])

    nodes, gpus = (int(n) for n in shape.split()[0].split("x"))
    trainer = autoddl.parallelize(
        model,
        autoddl.Cluster.load("laptop").with_shape(nodes, gpus),
        example=batch(range(ROWS)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: flow.optim.Adam(p, lr=1e-4, eps=1e-4),
        stages=2 if "stages" in shape else None,
    )
    home = folder / "checkpoints"
    seen = (trainer.load(home, missing_ok=True) or {"seen": 0})["seen"]
    with open(folder / "steps.jsonl", "a") as told:
        while trainer.steps < steps:
            # the data set is read in another order in each epoch, from where the checkpoint says
            epoch, at = divmod(seen, EXAMPLES)
            order = np.random.default_rng(epoch).permutation(EXAMPLES)
            numbers = order[at : at + ROWS].tolist()
            loss, seen = float(trainer.step(*batch(numbers))), seen + ROWS
            if trainer.is_main:
                said = {"life": life, "step": trainer.steps, "examples": numbers, "loss": loss}
                told.write(f"\n{json.dumps(said)}\n")  # the line before may be half-written
                told.flush()
            if trainer.steps % EVERY == 0:
                trainer.save(home, {"seen": seen}, keep=KEEP, wait=False)


def part(
    home: Path, name: str, shapes: Sequence[str], count: int, seed: int, dropout: bool
) -> dict:
    """A killed run beside the one that nobody kills."""
    steps = 20 + count * MOST  # a life does about half of MOST more than the one before
    expected = whole_run(home / f"{name}-whole", shapes[0], steps, dropout)
    seen = killed_run(home / name, shapes, count, steps, seed, dropout)
    result = compared(home / name, expected)
    print(name, result, flush=True)
    return {"name": name, "shapes": list(shapes), "kills": seen, **result}


def table(found: dict) -> str:
    lines = [
        "# A run killed at random",
        "",
        "`make bench-kills`: SIGKILL for one random rank, or all, of a run that saves beside "
        "training; then it goes on from its last checkpoint, on other devices or on the same. "
        f"{where_and_when(found['about'])}",
        "",
        "| devices in turn | kills | at start, in a step, while saving | a checkpoint half-written "
        "| steps | done, with those done again | largest difference of a loss | examples lost "
        "| repeated | in another order |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found["parts"]:
        when = Counter(kill["when"] for kill in one["kills"])
        each = ", ".join(str(when[kind]) for kind in ("start", "step", "save"))
        half = sum(kill["half"] for kill in one["kills"])
        apart = "0, to the bit" if one["losses"] == 0 else f"{one['losses']:.1e}"
        lines.append(
            f"| {', '.join(one['shapes'])} | {len(one['kills'])} | {each} | {half} "
            f"| {one['steps']} | {one['done']} | {apart} | {one['lost']} | {one['repeated']} "
            f"| {one['others']} |"
        )
    ends = sorted(kill["seconds"] for one in found["parts"] for kill in one["kills"])
    lines += [
        "",
        f"A job ended {ends[len(ends) // 2]:.1f} s after the kill (median; {ends[-1]:.1f} s at "
        "most), each with a status that is not 0. Each life went on from the checkpoint that was "
        "the newest when it began. Losses are compared with those of a run that nobody kills, on "
        "the devices named first: in turn, three lives of four have another plan than that. Those "
        "with an unchanged plan have dropout.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--same", type=int, default=12, help="of them by an unchanged plan")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autoddl-kills-") as folder:
        home = Path(folder)
        parts = [
            part(home, "turns", SHAPES, asked.kills - asked.same, asked.seed, dropout=False),
            part(home, "same", SHAPES[:1], asked.same, asked.seed + 1, dropout=True),
        ]
    save("kills", {"seed": asked.seed, "parts": parts}, table)
    good = all(
        one["losses"] <= 1e-5 and not (one["lost"] or one["repeated"] or one["others"])
        for one in parts
    )
    return 0 if good and parts[1]["losses"] == 0 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        folder, life, shape, steps, dropout = sys.argv[2:]
        worker(Path(folder), int(life), shape, int(steps), dropout == "1")
    else:
        sys.exit(main())
