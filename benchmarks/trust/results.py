"""Where the results of this folder go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from benchmarks.box.results import machine, where_and_when

__all__ = ["save", "where_and_when"]
FOLDER = Path(__file__).parents[1] / "results" / "trust"


def save(name: str, found: dict[str, Any], table: Callable[[dict[str, Any]], str]) -> None:
    """NAME.json and NAME.md in the folder of results, with the machine and the date."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = {"about": machine(), **found}
    write_atomically(FOLDER / f"{name}.json", json.dumps(found, indent=1) + "\n")
    write_atomically(FOLDER / f"{name}.md", table(found))
