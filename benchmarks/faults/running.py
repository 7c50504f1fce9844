"""One job with one fault: run, and looked at when it has ended."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoddl.runtime.jobs.launch import LISTEN_SECONDS, run_processes
from autoddl.tools.box.box import Box
from autoddl.tools.box.commands import run as command

from .cases import MARK, TRAINED, Fault, is_named

ROOT = Path(__file__).parents[2]
# above the limit: companions look twice a second and wait for last words; ended processes may
# still say why, the record is written, and there are 3 s after SIGTERM
SLACK_SECONDS = 5.0
START_SECONDS = 60.0  # that ranks have to come at all
DEFAULT_LIMIT_SECONDS = 60.0
_TOKEN = "AUTODDL_FAULT"


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    seconds: after the fault
    line:    the first of all that the job says of its failure, also by its framework; of a job that
             goes on, what it has said of the fault
    left:    processes, namespaces and files that should not be there any more
    """

    fault: Fault
    limit_s: float
    seconds: float
    status: int
    line: str
    left: str

    @property
    def is_hang(self) -> bool:
        most = self.limit_s
        if self.fault.is_slow_to_show:  # the others are started when rank 0 listens, or later
            most = START_SECONDS + (LISTEN_SECONDS if self.fault.rank == 0 else 0.0)
        if self.fault.goes_on:
            return self.status == 124
        return self.status == 124 or not self.seconds <= most + SLACK_SECONDS

    @property
    def is_right(self) -> bool:
        """The status is as it should be, and the cause is named."""
        return (self.status == 0) == self.fault.goes_on and is_named(self.fault, self.line)

    @property
    def is_good(self) -> bool:
        return self.is_right and not self.is_hang and not self.left

    def and_left(self, namespaces: Iterable[str]) -> Ended:
        return dataclasses.replace(self, left="; ".join(filter(None, (self.left, *namespaces))))

    def as_words(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def of(words: Mapping[str, Any]) -> Ended:
        return Ended(**{**words, "fault": Fault(**words["fault"])})


class _Output(io.StringIO):
    """What the job says; `act` is called once, in a thread, when the fault is due."""

    def __init__(self, act: threading.Thread) -> None:
        super().__init__()
        self._act = act
        self.at = float("nan")

    def write(self, text: str) -> int:
        found = re.search(rf"{MARK} ([\d.]+)", text)
        if found and self.at != self.at:
            self.at = float(found[1])
            self._act.start()
        return super().write(text)


def run(fault: Fault, limit_s: float, box: Box | None, folder: Path, logs: Path | None) -> Ended:
    """folder: an empty one, for the job's record; logs: where all that it says is kept."""
    if fault.kind == "down 40 s":
        limit_s = DEFAULT_LIMIT_SECONDS
    token, temporary = f"{os.getpid()}-{time.time()}", folder / "temporary"
    temporary.mkdir()
    in_place, record = folder / "in_place", folder / "record.txt"
    words = json.dumps({**fault.as_words(), "in_place": str(in_place)})
    env = {
        "AUTODDL_TIMEOUT": str(limit_s), "AUTODDL_RECORD": str(record), "PYTHONPATH": str(ROOT),
        "GLOG_minloglevel": "3", "TMPDIR": str(temporary), _TOKEN: token,
    }  # fmt: skip
    act = threading.Thread(target=_act, args=(fault, box, in_place), daemon=True)
    output, started = _Output(act), time.time()
    start = box.run if box else partial(_run_here, fault.ranks)
    status = start(
        ["-m", "benchmarks.faults.rank", words], env, output=output,
        timeout=limit_s + (300 if fault.kind == "loses 5 %" else 90),
        overlaps="stages" in fault.mesh,
    )  # fmt: skip
    now, text = time.time(), output.getvalue()
    if act.ident:
        act.join()
    seconds = now - (output.at if output.at == output.at else started)
    if status == 0 and TRAINED not in text:
        status = -1
    left = _left(token, temporary)
    if logs is not None:
        (logs / f"{fault}.log").write_text(text)
    return Ended(fault, limit_s, round(seconds, 1), status, _line(fault, text), left)


def _run_here(ranks: int, words: list[str], env: Mapping[str, str], **options: Any) -> int:
    return run_processes(words, ranks, env, **options)


def _line(fault: Fault, text: str) -> str:
    lines = [re.sub(r"^\[\d+\] ", "", line) for line in text.splitlines()]
    if fault.goes_on:
        return next((one for one in lines if "10.77." in one or "not those of" in one), "nothing")
    # the fault itself, and what is said of links and placements while a job goes on
    usual = (MARK, "autoddl: the link")
    if fault.when == "before import" and fault.kind == "raise":  # Python's traceback comes first
        return next((one for one in lines if "ends the job" in one), "nothing")
    return next((one for one in lines if not one.startswith(usual)), "nothing")


def _act(fault: Fault, box: Box | None, in_place: Path) -> None:
    """Do to the link of the fault's host what it says."""
    if not fault.is_of_link:
        return
    assert box is not None
    router, host, port = box.spec.router, box.spec.address(fault.host), f"host{fault.host}"
    if fault.kind.startswith("down"):
        command("ip", "-n", router, "link", "set", port, "down")
    elif fault.kind == "loses 5 %":
        for rule in (
            "add table ip faults",
            "add chain ip faults passing { type filter hook forward priority 0; }",
            f"add rule ip faults passing ip daddr {host} numgen random mod 100 < 5 drop",
            f"add rule ip faults passing ip saddr {host} numgen random mod 100 < 5 drop",
        ):
            command("ip", "netns", "exec", router, "nft", rule)
    else:
        hosts = range(box.spec.nodes)
        # the network parts in halves: the fault's host and the next are one
        own = {fault.host, (fault.host + 1) % len(hosts)} if len(hosts) > 2 else {fault.host}
        ours = [box.spec.address(n) for n in own]
        others = [box.spec.address(n) for n in hosts if n not in own]
        dropped = [("all", host)] if fault.kind == "one way" else [
            pair for a in ours for b in others for pair in ((a, b), (b, a))
        ]  # fmt: skip
        for source, to in dropped:
            command("ip", "-n", router, "rule", "add", "blackhole", "from", source, "to", to)
    in_place.touch()
    if fault.kind.startswith("down "):
        time.sleep(float(fault.kind.split()[1]))
        command("ip", "-n", router, "link", "set", port, "up")


def _left(token: str, temporary: Path) -> str:
    """Of the job's processes those that still run a second later, and its temporary files."""
    time.sleep(1.0)
    found = [str(path) for path in temporary.iterdir()]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_TOKEN}={token}".encode() in (path / "environ").read_bytes():
                found.append(f"process {(path / 'cmdline').read_bytes()[:60]!r}")
        except OSError:  # it has ended
            continue
    return "; ".join(found)
