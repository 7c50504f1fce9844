"""Sections as text: tables that fit the width, and sentences.

A table that is too wide is cut between its columns into several, one below the other, each with the
first column again and with the rows that have something to read there: so nothing is left out on
80 columns.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..._files import expect
from ..plan import Plan
from .contents import layer_report, report
from .sections import (
    NOTATIONS,
    Column,
    Figures,
    Notation,
    Report,
    Section,
    ShownRow,
    Table,
)

PIPE_WIDTH = 320  # columns where nobody sees where lines end: what the widest tables take
WORDS_WIDTH = 34  # that a column of words takes before it is wrapped: two labels of a product
BETWEEN = 3  # blanks between two columns, as rich has them
_WORDS = ("text", "lines", "split", "topology", "signature")


def explain(
    plan: Plan,
    layer: str | None = None,
    width: int | None = None,
    notation: Notation = "words",
) -> str:
    """The plan in words and numbers; with `layer`, that layer alone, step by step.

    width: columns; None for those of COLUMNS, of the terminal, or as many as the tables take.
    notation: "words", or "sbp" for topologies and signatures as the AutoDDL paper writes them.
    ValueError if no layer has that name, and for another notation.
    """
    expect(plan, Plan, "explain takes a Plan, which autoddl.plan gives and Plan.load reads")
    if notation not in NOTATIONS:
        raise ValueError(f"unknown notation {notation!r}; use one of {', '.join(NOTATIONS)}")
    shown = report(plan) if layer is None else layer_report(plan, layer)
    return text(shown, width=width, notation=notation)


def text(
    shown: Report,
    *,
    width: int | None = None,
    brief: bool = False,
    styled: bool = False,
    notation: Notation = "words",
) -> str:
    """A report as text. brief: its short account; styled: with a terminal's colours."""
    shown = shown.in_notation(notation)
    out = Printer(width, styled)
    out.line(shown.title, "bold")
    out.line(shown.subtitle)
    told, part = set[str](), ""
    for name, section in shown.all_sections():
        if brief and not section.brief:
            continue
        if name != part:
            part = name
            out.line("")
            out.line(name, "bold")
        out.section(section, told, brief)
    for other in shown.parts:
        if other.same_as:
            out.line("")
            out.line(f"{other.title}: the plan of {other.same_as}", "bold")
    return out.text()


def width_of(stream: TextIO) -> int | None:
    """The columns that a user has chosen or sees; None where nobody does."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return int(os.environ["COLUMNS"])
    return shutil.get_terminal_size().columns if stream.isatty() else None


class Printer:
    """Writes sections, `width` columns wide (None: as `width_of` stdout)."""

    def __init__(self, width: int | None, styled: bool = False) -> None:
        self._asked = width or width_of(sys.stdout)
        self._width = self._asked or PIPE_WIDTH
        self._file = io.StringIO()
        self._out = Console(
            file=self._file, width=self._width, force_terminal=styled, highlight=False, no_color=
            not styled,
        )  # fmt: skip

    def text(self) -> str:
        """All that was written."""
        lines = "\n".join(line.rstrip() for line in self._file.getvalue().splitlines())
        return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")

    def line(self, words: str, style: str = "") -> None:
        """A sentence, wrapped only where somebody sees its end."""
        self._out.print(Text(words, style=style), soft_wrap=self._asked is None)

    def section(self, section: Section, told: set[str], brief: bool) -> None:
        """A section and those of its notes that were not `told` before."""
        if isinstance(section, Figures):
            figures = ", ".join(f"{figure.title} {figure.text}" for figure in section.shown)
            self.line(f"{section.title}: {figures}" if figures else section.title)
        elif section.rows:
            self._table(section, brief)
        for note in section.notes:
            if note not in told:
                told.add(note)
                self.line(note)

    def _table(self, table: Table, brief: bool) -> None:
        main = [c for c in table.given if not c.apart]
        apart = [c for c in table.given if c.apart and c.unit != "lines" and not brief]
        rows, totals = table.shown([*main, *apart]), [ShownRow(t) for t in [table.totals] if t]
        self.line(f"\n{table.title}", "bold")
        for number, group in enumerate(_groups(table, main, [*rows, *totals], self._width)):
            named = _filled(table, group, rows) if number else rows
            self._grid(table, group, named, _filled(table, group, totals))
        for group in _groups(table, [main[0], *apart], rows, self._width) if apart else ():
            self._grid(table, group, _filled(table, group, rows), ())
        if len(table.rows) == 1:
            for column in (c for c in table.given if c.unit == "lines"):
                self.line(table.text(column, table.rows[0]))

    def _grid(
        self,
        table: Table,
        columns: Sequence[Column],
        rows: Sequence[ShownRow],
        totals: Sequence[ShownRow],
    ) -> None:
        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in columns:
            words = column.unit in _WORDS
            grid.add_column(
                column.title,
                justify="left" if words else "right",
                no_wrap=not words,
                overflow="fold",
            )
        for part in (rows, totals):
            grid.add_section()
            for row in part:
                grid.add_row(*(Text(_cell(table, c, row, columns[0])) for c in columns))
        self._out.print(grid)
        self.line("")


def _filled(
    table: Table, columns: Sequence[Column], rows: Sequence[ShownRow]
) -> Sequence[ShownRow]:
    """The rows that have something to read beside their names."""
    return [row for row in rows if any(table.text(c, row.values) for c in columns[1:])]


def _cell(table: Table, column: Column, row: ShownRow, first: Column) -> str:
    words = table.text(column, row.values)
    return f"{words} x{row.count}" if row.count > 1 and column is first else words


def _groups(
    table: Table, columns: Sequence[Column], rows: Sequence[ShownRow], width: int
) -> list[list[Column]]:
    """The columns in groups that fit, the first of them in each."""

    def wide(column: Column) -> int:
        cells = (_cell(table, column, row, columns[0]) for row in rows)
        lines = [column.title, *(line for cell in cells for line in cell.splitlines())]
        widest = max(map(len, lines))
        return BETWEEN + (min(widest, WORDS_WIDTH) if column.unit in _WORDS else widest)

    first, *others = columns
    groups, taken = [[first]], wide(first)
    for column in others:
        if taken + wide(column) > width and len(groups[-1]) > 1:
            groups.append([first])
            taken = wide(first)
        groups[-1].append(column)
        taken += wide(column)
    return groups
