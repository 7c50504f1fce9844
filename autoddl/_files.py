"""Files that are written whole or not at all, read with errors that name them, and JSON's limits.

`KINDS` are the JSON files of the package: one that is given in the place of another is named as
what it is.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Loaded = TypeVar("Loaded")

# Kind of file -> the fields by which it is known, and where such a file comes from
KINDS: Mapping[str, tuple[frozenset[str], str]] = {
    "plan": (frozenset({"cluster", "graph"}), "'autoddl plan -o FILE' writes one"),
    "graph": (frozenset({"ops", "tensors", "loss"}), "'autoddl trace -o FILE' writes one"),
    "machine file": (
        frozenset({"nodes", "gpus_per_node", "device"}),
        "'autoddl calibrate' writes one, 'autoddl machines' lists some",
    ),
    "calibration record": (
        frozenset({"machine", "collectives"}),
        "'autoddl calibrate' writes one beside its machine file",
    ),
}


def load_file(path: str | Path, kind: str, loads: Callable[[str], Loaded]) -> Loaded:
    """What `loads` makes of the text of a file; `kind` is one of `KINDS`.

    ValueError names the file and what is wrong: also if there is none, or if it is of another kind.
    """
    try:
        text = Path(path).read_text()
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file: {error}") from error
    try:
        return loads(text)
    except ValueError as error:
        found = kind_of(text)
        if found is None or found == kind:
            raise ValueError(f"{path}: {error}") from error
        raise ValueError(
            f"{path} is a {found}; a {kind} is needed here ({KINDS[kind][1]})"
        ) from error


def kind_of(text: str) -> str | None:
    """Which of `KINDS` the text of a file is; None for any other."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    return next((kind for kind, (fields, _) in KINDS.items() if fields <= data.keys()), None)


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
