"""Files that are written whole or not at all, and what JSON does not know."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside `path` and rename, so that a good file is never lost to a partial one.

    A text gets a newline at its end.
    """
    path = Path(path)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        data = content if isinstance(content, bytes) else f"{content}\n".encode()
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def json_number(number: float) -> float | None:
    """The number, or None (null) if it is infinite, which JSON does not know."""
    return number if math.isfinite(number) else None
