"""Text that needs no download: the source of Python's own library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TEXT_BYTES = 2_000_000


def library_text(limit: int = TEXT_BYTES) -> NDArray[np.uint8]:
    """The first `limit` bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return np.frombuffer(bytes(text[:limit]), dtype=np.uint8)
