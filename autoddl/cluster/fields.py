"""Reads one JSON object field by field; every error is a ValueError that names the field."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def load_object(text: str) -> dict[str, Any]:
    """Parse one JSON object. Raises ValueError on bad JSON, a repeated field or another type."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ValueError(f"field {name!r} is given twice")
            found[name] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type_name(data)}")
    return data


class Fields:
    """The fields of one JSON object; `where` is its own dotted name, "" for the whole file."""

    def __init__(self, data: Any, where: str, known: Iterable[str]) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"field {where!r} must be an object, got {type_name(data)}")
        self._data = data
        self._where = where
        check_known(data, known, where)

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def raw(self, name: str) -> Any:
        if name not in self._data:
            raise ValueError(f"field {self.path(name)!r} is missing")
        return self._data[name]

    def text(self, name: str, choices: tuple[str, ...] = ()) -> str:
        value = self.raw(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"field {self.path(name)!r} must be a text, got {type_name(value)}")
        if choices and value not in choices:
            raise ValueError(
                f"field {self.path(name)!r} must be one of {', '.join(choices)}; got {value!r}"
            )
        return value

    def number(self, name: str, *, zero: bool = False, default: float | None = None) -> float:
        """A finite number above zero (or from zero on, if `zero`)."""
        if default is not None and name not in self._data:
            return default
        return checked_number(self.raw(name), self.path(name), zero=zero)

    def count(self, name: str) -> int:
        """A whole number of at least one (`16e9` is one, too)."""
        value = checked_number(self.raw(name), self.path(name))
        if value != int(value):
            raise ValueError(f"field {self.path(name)!r} must be a whole number, got {value!r}")
        return int(value)


def checked_number(value: Any, path: str, *, zero: bool = False) -> float:
    """`value` if it is a finite number above zero (or from zero on), else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"field {path!r} must be a number, got {type_name(value)}")
    if not math.isfinite(value):
        raise ValueError(f"field {path!r} must be a finite number, got {value}")
    if value < 0 or (value == 0 and not zero):
        bound = "zero or more" if zero else "more than zero"
        raise ValueError(f"field {path!r} must be {bound}, got {value}")
    return value


def check_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ValueError on a name that is not in `known`, and suggest the nearest one."""
    known = tuple(known)
    for name in names:
        if name not in known:
            path = f"{where}.{name}" if where else name
            near = difflib.get_close_matches(name, known, n=1) or [k for k in known if name in k]
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"unknown field {path!r}; {hint}")


def type_name(value: Any) -> str:
    """JSON's word for the type of `value`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    return "a list" if isinstance(value, list) else "an object"
