"""A checkpoint is a folder `step-N`, which is there only when all of it is on the disk.

Ranks write into a hidden folder beside it: each its shard, and beside that what is in it. When all
have, rank 0 adds the manifest and gives the folder its name. Whatever happens before, the
checkpoints that were there are as they were.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ..._files import FileKind, Size, Versioned, checked, write_atomically
from .pieces import Part, Piece

MANIFEST = "manifest.json"
_NAME, _PARTIAL, _NEW = "step-", ".step-", ".new"


@checked
class Tensor:
    """Whole shape, and dtype."""

    shape: tuple[Size, ...]
    dtype: str


@checked
class Manifest:
    """What is in a checkpoint.

    steps, seed:    done so far, and of dropout
    optimizer:      its class
    updates:        that it has made
    scaler:         the loss scale, if there is one
    tensors:        the model's ("model/NAME"), what the optimizer keeps ("optimizer/SLOT/NAME") and
                    the averages ("ema/NAME")
    pieces:         of the tensors, each element once
    options:        of the optimizer, by parameter
    extra:          the user's own
    """

    VERSION: ClassVar[int] = 1
    SEALED: ClassVar[bool] = True

    steps: Size
    seed: int
    optimizer: str
    updates: Size
    scaler: dict[str, Any] | None
    tensors: dict[str, Tensor]
    pieces: tuple[Piece, ...]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        left = {key: math.prod(tensor.shape) for key, tensor in self.tensors.items()}
        for piece in self.pieces:
            whole = self.tensors.get(piece.key)
            if whole is None or not _lies_in(piece, whole.shape):
                raise ValueError(f"a piece of {piece.key} does not lie in it")
            left[piece.key] -= piece.numel
        if missing := [key for key, count in left.items() if count]:
            raise ValueError(f"the pieces of {missing[0]} are not the whole of it")


@checked
class Written:
    """What a rank has put into its shard; fields as of the manifest."""

    tensors: dict[str, Tensor]
    pieces: tuple[Piece, ...]
    options: dict[str, dict[str, Any]]


MANIFEST_FILE: FileKind[Manifest] = FileKind(
    "checkpoint", Annotated[Manifest, Versioned()], "take another checkpoint"
)
WRITTEN_FILE: FileKind[Written] = FileKind("list of a shard", Written, "save again")


def _lies_in(piece: Piece, shape: tuple[int, ...]) -> bool:
    if not len(piece.start) == len(piece.shape) == len(shape) or min(piece.rank, piece.offset) < 0:
        return False
    boxes = zip(piece.start, piece.shape, shape, strict=True)
    return all(0 <= start <= start + size <= whole for start, size, whole in boxes)


def save_written(
    partial: Path,
    rank: int,
    parts: Sequence[Part],
    pieces: Sequence[Piece],
    options: dict[str, dict[str, Any]],
) -> None:
    """Say what a rank has put into its shard, which is on the disk."""
    tensors = {part.key: Tensor(part.whole, part.array.dtype.name) for part in parts}
    WRITTEN_FILE.save(Written(tensors, tuple(pieces), options), _index(partial, rank))


def _index(partial: Path, rank: int) -> Path:
    return partial / f"rank-{rank:05d}.json"


def begin(folder: str | Path, steps: int, token: str, plan: str) -> Path:
    """Make the hidden folder of a checkpoint; what ended halfway is removed. OSError."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    for left in home.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left)
    partial = home / f"{_PARTIAL}{steps:08d}.{token}"
    partial.mkdir()
    write_atomically(partial / "plan.json", plan)
    return partial


def missing_ranks(partial: Path, ranks: int) -> list[int]:
    """Those that have not written all."""
    return [rank for rank in range(ranks) if not _index(partial, rank).exists()]


def commit(partial: Path, ranks: int, facts: Mapping[str, Any], keep: int | None) -> Path:
    """Make a checkpoint of what all ranks have written, and remove all but the last `keep`.

    facts: the fields of its manifest that are no rank's own
    """
    tensors, options, pieces = dict[str, Tensor](), dict[str, dict[str, Any]](), list[Piece]()
    for rank in range(ranks):
        told = WRITTEN_FILE.loads(_index(partial, rank).read_text())
        tensors |= told.tensors
        options |= told.options
        pieces += told.pieces
        _index(partial, rank).unlink()
    manifest = Manifest(tensors=tensors, pieces=tuple(pieces), options=options, **facts)
    MANIFEST_FILE.save(manifest, partial / MANIFEST)
    for path in (partial / MANIFEST, partial):
        _flush(path)
    final = partial.parent / f"{_NAME}{manifest.steps:08d}"
    _give_name(partial, final)
    _flush(final.parent)
    others = [place for place in checkpoints(final.parent) if place != final]
    for place in others[keep - 1 :] if keep is not None else ():
        _remove(place)
    return final


def _give_name(whole: Path, final: Path) -> None:
    """A run that went on from an earlier step has come here again, and replaces what was there.

    At each moment one of the two is there under a name that `checkpoints` finds.
    """
    interim = final.with_name(f"{final.name}{_NEW}")
    if interim.exists():  # a job was killed below
        _remove(final)
        interim.rename(final)
    whole.rename(interim)
    _remove(final)
    interim.rename(final)


def _remove(place: Path) -> None:
    """At once for those who look for checkpoints."""
    if place.exists():
        place.rename(gone := place.with_name(f"{_PARTIAL}{place.name}.old"))
        shutil.rmtree(gone)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, or the folder itself if it is one; those written last first.

    A run that has gone on from an earlier step has older ones with more steps beside it.
    """
    home = Path(folder)
    if (home / MANIFEST).exists():
        return [home]
    found = [
        place for place in home.glob(f"{_NAME}*")
        if place.name.removeprefix(_NAME).removesuffix(_NEW).isdecimal() and place.is_dir()
    ]  # fmt: skip
    return sorted(found, key=lambda place: (_written(place), place.name), reverse=True)


def _written(place: Path) -> int:
    """When, in nanoseconds; of one without a manifest, when that went; 0 if a job takes it away."""
    for path in (place / MANIFEST, place):
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime_ns
    return 0


def load_manifest(place: Path) -> Manifest:
    """ValueError names the file and what is wrong."""
    return MANIFEST_FILE.load(place / MANIFEST)
