"""Hints as files have them; files of their own, for models whose code one cannot edit.

A module of its own, as what checks files takes long to import and hints are imported everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from .._files import FIELDS, FileKind, Name, Stored, Versioned
from .hints import Hint, HintAt, Hints, as_hints


class _HintRow(NamedTuple):
    where: Name
    hint: str
    source: str


def _read_hints(rows: Iterable[_HintRow]) -> Hints:
    return tuple(HintAt(row.where, Hint.parse(row.hint), row.source) for row in rows)


def _hint_rows(hints: Hints) -> tuple[_HintRow, ...]:
    return tuple(_HintRow(own.where, str(own.hint), own.source) for own in hints)


StoredHints = Annotated[Hints, Stored(tuple[_HintRow, ...], _read_hints, _hint_rows)]


@dataclass(frozen=True)
class _HintFile:
    """hints: path of a module (`*`: any one part of it) or a parameter -> a hint, or several.

    Hints are `replicate(4)`, `split(2)`, `split(2, dim=0)`, `stage()` and placements like (B, S0).
    `host 3` (hosts count from 0): `least` leaves that host as little as possible.
    """

    VERSION: ClassVar[int] = 1

    hints: Mapping[Name, str | tuple[str, ...]]

    __pydantic_config__ = FIELDS


def _written(hints: Hints) -> _HintFile:
    paths = dict.fromkeys(own.where for own in hints)
    return _HintFile({p: tuple(str(own.hint) for own in hints if own.where == p) for p in paths})


HINT_FILE: FileKind[Hints] = FileKind(
    "hint file",
    Annotated[
        Hints,
        Stored(Annotated[_HintFile, Versioned()], lambda file: as_hints(file.hints), _written),
    ],
    "docs/hints.md tells what stands in one",
)


def load_hints(path: str | Path) -> Hints:
    """The hints of a file, which each has as its source. ValueError on what is wrong with it."""
    return tuple(replace(own, source=Path(path).name) for own in HINT_FILE.load(path))
