"""What is printed, read back as a reader sees it: tables of cells by where their columns end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01,
         "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}  # fmt: skip
TOTALS = ("a step", "needed", "all layers")
_CELL = re.compile(r"(?:.*  )?(\S+(?: \S+)?)")


@dataclass(frozen=True)
class Printed:
    """A table, or as many of its columns as a width has room for.

    columns: titles with where they begin and end; lines: those below
    total:   the line of the totals; "" for none
    """

    columns: tuple[tuple[str, int, int], ...]
    lines: tuple[str, ...]
    total: str

    def is_empty(self, start: int, end: int) -> bool:
        """Whether nothing stands below a title, where its column's cells begin or end."""
        return not any(line[start:end].strip() for line in self.lines)


def number(cell: str) -> tuple[float, float]:
    """The value of `2.34 ms`, and how far it may be off: half of its last digit."""
    found = re.fullmatch(r"([+-]?[\d.]+(?:e[+-]\d+)?) ?(\w+|%)", cell)
    assert found, cell
    value, unit = float(found[1]), UNITS[found[2]]
    off = 0.5 * 10.0 ** (math.floor(math.log10(abs(value))) - 2) if value else 0.0
    return value * unit, max(off, 0.5 if found[2] == "B" else 0.0) * unit


def cell(line: str, end: int) -> str:
    """The value that ends there; "" for none."""
    found = _CELL.fullmatch(line[:end])
    ends = end <= len(line) and line[end - 1] != " " and line[end : end + 1] in ("", " ")
    return found[1] if found and ends else ""


def tables(printed: str) -> Iterator[Printed]:
    """Every table in what a command has printed: titles, a rule, lines until a blank one."""
    lines = [*printed.splitlines(), "", ""]
    for at, line in enumerate(lines):
        if line and not line.strip("─"):
            header, first = lines[at - 1], at + 1
            last = lines.index("", first)
            starts = [found.span() for found in re.finditer(r"\S+(?: \S+)*", header)]
            total = lines[last + 1]
            is_total = re.split(r" {2,}", total)[0] in TOTALS
            yield Printed(
                tuple((header[a:b], a, b) for a, b in starts),
                tuple(lines[first:last]),
                total if is_total else "",
            )
