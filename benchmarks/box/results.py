"""Where results go, and what they say of the machine and the day."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically

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
        # of the last 15 minutes: what else the machine had to do
        "load_average": round(os.getloadavg()[2], 1),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def where_and_when(about: Mapping[str, Any]) -> str:
    """What `machine` gives, as a sentence."""
    return (
        f"On {about['processor']}, {about['cores']} cores, {about['date']}, with a load of "
        f"{about['load_average']} by other programs."
    )


def save(name: str, found: dict[str, Any], table: str) -> None:
    """NAME.json and NAME.md in the folder of results."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_atomically(FOLDER / f"{name}.json", _lines(found))
    write_atomically(FOLDER / f"{name}.md", table.rstrip())


def _lines(found: dict[str, Any]) -> str:
    """JSON with one case a line, so that a change of one is a change of one line."""
    parts = []
    for name, value in found.items():
        if name == "cases":
            groups = value.items() if isinstance(value, dict) else [("", value)]
            texts = []
            for group, cases in groups:
                body = "[\n" + ",\n".join(f"  {json.dumps(case)}" for case in cases) + "\n ]"
                texts.append(f" {json.dumps(group)}: {body}" if group else f" {body}")
            inside = ",\n".join(texts)
            text = f"{{\n{inside}\n}}" if isinstance(value, dict) else inside.strip()
        else:
            text = json.dumps(value, indent=1)
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"
