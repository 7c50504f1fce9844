"""Pieces of tensors in files: written one at a time, and only what is needed of them is read.

A file is in the format of safetensors: the length of its header (8 bytes, little-endian), the
header (JSON: name -> dtype, shape, and where its bytes are), and the bytes.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...sbp.layout import ITEM_BYTES, Shape

_AT_ONCE = 2**22  # bytes that are read to compare a checksum: more is not quicker
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32",
    "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, and where its bytes are.

    key:      of the tensor
    start:    its first element, in the whole tensor
    rank:     which wrote it, into the file of that name
    offset:   of its first byte in the file
    checksum: CRC-32 of its bytes
    """

    key: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    rank: int
    offset: int
    checksum: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def file(self) -> str:
        return shard_file(self.rank)


@dataclass(frozen=True)
class Part:
    """A rank's part of a tensor: of its `whole` shape, from `start` on; in memory of its own."""

    key: str
    whole: Shape
    start: Shape
    array: np.ndarray


def shard_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def write_parts(folder: Path, rank: int, parts: Sequence[Part]) -> list[Piece]:
    """Write a rank's file; it is on the disk then. OSError, or ValueError for an unknown dtype."""
    header, end = {}, 0
    for part in parts:
        name = part.array.dtype.name
        if name not in _NAMES:
            raise ValueError(f"{part.key}: tensors of {name} cannot be saved")
        start, end = end, end + part.array.nbytes
        header[part.key] = {
            "dtype": _NAMES[name], "shape": part.array.shape, "data_offsets": [start, end]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces = []
    with open(folder / shard_file(rank), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            data, where = part.array.reshape(-1).view(np.uint8), file.tell()
            file.write(data.data)
            found = zlib.crc32(data.data)
            pieces.append(Piece(part.key, part.start, part.array.shape, rank, where, found))
        file.flush()
        os.fsync(file.fileno())
    return pieces


class Reader:
    """Reads tensors from the pieces in a folder; `dtypes` of the tensors by key.

    One piece at a time is mapped into memory, so that only what is asked for is read, and what was
    read of others does not stay. ValueError names a file that is missing or broken.
    """

    def __init__(self, folder: Path, pieces: Sequence[Piece], dtypes: Mapping[str, str]) -> None:
        self.folder = folder
        self._pieces = pieces
        self._dtypes = dtypes

    @cached_property
    def _by_key(self) -> dict[str, list[Piece]]:
        found: dict[str, list[Piece]] = {}
        for piece in self._pieces:
            found.setdefault(piece.key, []).append(piece)
        return found

    def verify(self, rank: int, size: int) -> None:
        """Read this rank's part of all the pieces. ValueError names one that has changed."""
        for piece in self._pieces[rank::size]:
            if self._checksum(piece) != piece.checksum:
                raise ValueError(
                    f"{self.folder / piece.file}: {piece.key} has changed since it was written "
                    "(its checksum is another)"
                )

    def read(self, key: str, box: Sequence[slice]) -> np.ndarray:
        """That part of a tensor, in memory of its own."""
        shape = tuple(s.stop - s.start for s in box)
        found = np.empty(shape, self._dtypes[key])
        filled = 0
        for piece in self._by_key.get(key, ()):
            pairs = zip(box, piece.start, piece.shape, strict=True)
            common = [
                (max(own.start, start), min(own.stop, start + size)) for own, start, size in pairs
            ]
            if any(low >= high for low, high in common):
                continue
            target, source = (
                tuple(slice(low - first, high - first) for (low, high), first in zip(
                    common, firsts, strict=True
                ))
                for firsts in ([own.start for own in box], piece.start)
            )  # fmt: skip
            stored = self._bytes(piece).view(self._dtypes[key]).reshape(piece.shape)
            found[target] = stored[source]
            filled += math.prod(high - low for low, high in common)
        if filled != found.size:
            raise ValueError(f"{self.folder}: pieces of {key} are missing")
        return found

    def _checksum(self, piece: Piece) -> int:
        """Of a piece as it is in the file, read a little at a time."""
        left, found = self._size(piece), 0
        with self._opened(piece) as file:
            file.seek(piece.offset)
            while left:
                part = file.read(min(left, _AT_ONCE))
                if not part:
                    raise self._cut(piece)
                left, found = left - len(part), zlib.crc32(part, found)
        return found

    def _bytes(self, piece: Piece) -> np.ndarray:
        """[bytes] of a piece, in the file."""
        size = self._size(piece)
        if not size:
            return np.empty(0, np.uint8)
        with self._opened(piece) as file:
            if os.fstat(file.fileno()).st_size < piece.offset + size:
                raise self._cut(piece)
            return np.memmap(file, np.uint8, "r", piece.offset, (size,))

    @contextmanager
    def _opened(self, piece: Piece) -> Iterator[BinaryIO]:
        path = self.folder / piece.file
        if path.exists() and not path.is_file():  # a pipe's reader would wait
            raise ValueError(f"{path}: not a file")
        try:
            with open(path, "rb") as file:
                yield file
        except FileNotFoundError:
            raise ValueError(f"{path}: missing, which rank {piece.rank} had written") from None
        except OSError as error:
            raise ValueError(f"{path}: {error}") from error

    def _size(self, piece: Piece) -> int:
        return piece.numel * ITEM_BYTES[self._dtypes[piece.key]]

    def _cut(self, piece: Piece) -> ValueError:
        return ValueError(f"{self.folder / piece.file}: it ends before {piece.key} does")
