"""Real data that needs no download: handwritten digits, and the source text of Python's library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Batch = tuple[NDArray[np.generic], NDArray[np.int64]]
TEXT_BYTES = 2_000_000


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """scikit-learn's 1797 digits: images [n, 1, 32, 32], standardised, labels [n] from 0 to 9.

    The originals are 8 x 8; each pixel becomes a 4 x 4 square.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    squares = np.kron(images.reshape(-1, 8, 8), np.ones((4, 4)))
    standard = ((squares - squares.mean()) / squares.std()).astype(np.float32)
    return standard[:, None], labels.astype(np.int64)


def library_text(limit: int = TEXT_BYTES) -> NDArray[np.uint8]:
    """The first `limit` bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return np.frombuffer(bytes(text[:limit]), dtype=np.uint8)


def digit_batches(batch: int, steps: int, seed: int = 0) -> Iterator[Batch]:
    """`steps` random batches of (images [batch, 1, 32, 32], labels [batch])."""
    images, labels = digits()
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.choice(len(labels), size=batch, replace=batch > len(labels))
        yield images[rows], labels[rows]


def text_batches(batch: int, length: int, steps: int, seed: int = 0) -> Iterator[Batch]:
    """`steps` random batches of (bytes [batch, length], the bytes that follow each), as int64."""
    text = library_text().astype(np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - length - 1, size=batch)
        windows = text[starts[:, None] + np.arange(length + 1)]
        yield windows[:, :-1], windows[:, 1:]
