"""What stands on disk of each box, so that another process can see it, use it and take it down.

A box belongs to the process that made it, until that process hands it over (`owner` None: the box
stays up until `autoddl box down`). A box whose owner is gone is stale: its owner has crashed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..._files import FIELDS, FileKind, write_atomically
from .spec import BoxSpec

FOLDER = Path("/run/autoddl-box")


@dataclass(frozen=True)
class Owner:
    """A process, and when it started (clock ticks since boot), as ids come round again."""

    pid: int
    started: int

    @staticmethod
    def me() -> Owner:
        return Owner(os.getpid(), _start_of(os.getpid()) or 0)

    @property
    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.started


@dataclass(frozen=True)
class Record:
    """A box on disk."""

    spec: BoxSpec
    owner: Owner | None

    __pydantic_config__ = FIELDS

    @property
    def is_stale(self) -> bool:
        return self.owner is not None and not self.owner.is_alive

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.spec.name}.json"

    def claim(self) -> None:
        """Write the record if there is none of that name. FileExistsError if there is one."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=FOLDER, prefix=".", suffix=".new") as file:
            file.write(self._text())
            file.flush()
            os.chmod(file.name, 0o644)
            os.link(file.name, self.path)  # never half-written, and only one can win

    def save(self) -> None:
        write_atomically(self.path, self._text())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            FOLDER.rmdir()

    def _text(self) -> str:
        return BOX_FILE.dumps(self)


BOX_FILE: FileKind[Record] = FileKind("box", Record, "remove it and run 'autoddl box down'")


def find_record(name: str) -> Record | None:
    """The record of a box; None if there is none. ValueError if the file is not whole."""
    path = FOLDER / f"{name}.json"
    try:
        return BOX_FILE.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} does not describe a box: {error}") from error


def all_records() -> list[Record]:
    """The records of all boxes on this machine."""
    found = (find_record(path.stem) for path in sorted(FOLDER.glob("*.json")))
    return [record for record in found if record is not None]


def _start_of(pid: int) -> int | None:
    """When a process started; None if it is gone, or has ended and waits to be collected."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name, in brackets, may hold anything
    words = text.rpartition(")")[2].split()
    return None if words[0] in "ZX" else int(words[19])
