"""Files with hints, for models whose code one cannot edit: a JSON object, path -> hint or hints.

A module of its own, as what checks files takes long to import and hints are imported everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from .._files import FIELDS, FileKind, Name, Stored, Versioned
from .hints import Hints, as_hints


@dataclass(frozen=True)
class _HintFile:
    """hints: path of a module (`*`: any one part of it) or a parameter -> a hint, or several.

    Hints are `replicate(4)`, `split(2)`, `split(2, dim=0)`, `stage()` and placements like (B, S0).
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
