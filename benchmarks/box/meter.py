"""Measures what one call sends through every host's link, and how long it takes.

All ranks meet before and after the call, by a sum of one number each; a meeting alone is measured
just before, the idle run, and taken off. The communication of a rank is one queue, so that a
meeting ends after everything that was asked for before it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoddl.runtime.comm.groups import Groups
from autoddl.tools.box.counters import LinkBytes, read_own_link

QUIET_SECONDS = 0.02  # the last acknowledgements
SLOWEST_MEETING = 5  # seconds of meetings are the median of so many


@dataclass
class Meter:
    """The meter of this rank; `save` writes its readings."""

    groups: Groups
    readings: list[dict[str, Any]] = field(default_factory=list)
    _meeting_s: float = 0.0

    def __post_init__(self) -> None:
        self._world = self.groups.along(range(self.groups.mesh.num_axes))
        for _ in range(3):
            self._meet()
        self._meeting_s = statistics.median(self._timed_meeting() for _ in range(SLOWEST_MEETING))

    def bytes_of(self, call: Callable[[], object], repeats: int = 1) -> None:
        """Note the bytes that the call sends on this host's link, less an idle run's."""
        raw, payload, idle, received = [], [], [], []
        for _ in range(repeats):
            start = self._look()
            middle = self._look()
            call()
            end = self._look()
            waste = middle - start
            busy = end - middle
            raw.append(busy.sent_bytes - waste.sent_bytes)
            payload.append(busy.sent_payload - waste.sent_payload)
            received.append(
                (
                    busy.received_bytes - waste.received_bytes,
                    busy.received_payload - waste.received_payload,
                )
            )
            idle.append(waste.sent_bytes)
        self._note(
            sent_bytes=statistics.median(raw),
            sent_payload=statistics.median(payload),
            idle_bytes=statistics.median(idle),
            received_bytes=statistics.median(whole for whole, _ in received),
            received_payload=statistics.median(inner for _, inner in received),
        )

    def seconds_of(
        self, call: Callable[[], object], repeats: int, part: Callable[[], float]
    ) -> None:
        """Note the seconds of `repeats` calls, less a meeting's, and `part` of each after it."""
        seconds, parts = [], []
        for _ in range(repeats):
            self._meet()
            started = time.perf_counter()
            call()
            self._meet()
            seconds.append(time.perf_counter() - started - self._meeting_s)
            parts.append(part())
        self._note(seconds=seconds, parts=parts, meeting_s=self._meeting_s)

    def save(self, folder: str) -> None:
        """Write the readings as JSON lines, one file a rank."""
        path = Path(folder) / f"rank{self.groups.rank}.jsonl"
        path.write_text("".join(json.dumps(reading) + "\n" for reading in self.readings))

    def _note(self, **values: Any) -> None:
        self.readings.append(values)

    def _meet(self) -> None:
        backend = self.groups.backend
        backend.to_numpy(self._world.all_reduce(backend.zeros((1,), "float32")))

    def _timed_meeting(self) -> float:
        started = time.perf_counter()
        self._meet()
        return time.perf_counter() - started

    def _look(self) -> LinkBytes:
        """The link's counter at a moment when nothing is on its way."""
        self._meet()
        time.sleep(QUIET_SECONDS)
        count = read_own_link()
        self._meet()  # nobody goes on before all have looked
        return count


def load_readings(folder: str | Path, ranks: range) -> list[list[dict[str, Any]]]:
    """For each reading, what each of `ranks` noted."""
    files = [Path(folder) / f"rank{rank}.jsonl" for rank in ranks]
    columns = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    return [list(row) for row in zip(*columns, strict=True)]
