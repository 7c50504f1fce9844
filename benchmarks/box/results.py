"""Where results go, and what they say of the machine and the day."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoddl.files import write_atomically

FOLDER = Path(__file__).parents[1] / "results" / "box"


def machine() -> dict[str, Any]:
    """The machine and the date, for every result."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def save(name: str, found: dict[str, Any], table: str) -> None:
    """NAME.json and NAME.md in the folder of results."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_atomically(FOLDER / f"{name}.json", json.dumps(found, indent=1))
    write_atomically(FOLDER / f"{name}.md", table.rstrip())
