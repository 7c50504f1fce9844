"""Reads plans with stages and without."""

from __future__ import annotations

import json
from pathlib import Path

from .. import Plan
from .file import STAGED
from .plan import StagedPlan


def loads_plan(text: str) -> Plan | StagedPlan:
    """Read what `dumps` of either wrote. Raises ValueError if it is not a whole plan."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("not a plan file: the JSON is no object")
    return StagedPlan.from_json(data) if data.get("kind") == STAGED else Plan.from_json(data)


def load_plan(path: str | Path) -> Plan | StagedPlan:
    """Read a plan, with stages or without. ValueError names the file and what is wrong with it."""
    try:
        return loads_plan(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
