"""Sections of what is shown: tables and figures by name, each value once with its unit.

`format.written` is what people read of a value; JSON has the value itself. A table's totals are the
sums of its rows, and rows that read alike may share one, which shows what they have together: so
every column adds up, wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..format import Unit, Value, shared_name, without_numbers, written
from ..stage import Split

Row = Mapping[str, Value]
Notation = Literal["words", "sbp"]  # `batch 4 × out 2`, or the labels of the AutoDDL paper
NOTATIONS: tuple[Notation, ...] = ("words", "sbp")


@dataclass(frozen=True)
class Column:
    """A column of a table: its name in JSON and for people, and the unit of its values.

    adds:     its total is the sum of the rows
    apart:    it is shown below the table (in the page: beside the row)
    notation: the only one in which it is shown; None for both
    """

    key: str
    title: str
    unit: Unit = "text"
    adds: bool = False
    apart: bool = False
    notation: Notation | None = None


@dataclass(frozen=True)
class ShownRow:
    """A row as it is shown: what the rows `members` of the table add up to, together."""

    values: Row
    members: tuple[Row, ...] = ()

    @property
    def count(self) -> int:
        return max(len(self.members), 1)


@dataclass(frozen=True)
class Table:
    """Rows of values by the columns' keys.

    title:   for people; a table without one is for JSON alone
    total:   what the row of totals is called; "" for none
    folds:   rows that read alike but for numbers in the first column share a row
    by_name: in JSON an object by the rows' "name" instead of a list
    brief:   it belongs into the short account of `autoddl plan`
    notes:   sentences about it
    legend:  what its words, or its labels, mean
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    total: str = ""
    folds: bool = False
    by_name: bool = False
    brief: bool = False
    notes: tuple[str, ...] = ()
    legend: Mapping[Notation, str] = field(default_factory=dict)

    def in_notation(self, notation: Notation) -> Table:
        """For people, who read one notation; in JSON a row has all of them."""
        columns = tuple(c for c in self.columns if c.notation in (None, notation))
        legend = self.legend.get(notation, "")
        notes = (*filter(None, (legend,)), *self.notes)
        return replace(self, columns=columns, notes=notes, legend={})

    @property
    def given(self) -> tuple[Column, ...]:
        """The columns in which a row has something to read."""
        return tuple(c for c in self.columns if any(self.text(c, row) for row in self.rows))

    @property
    def sums(self) -> dict[str, float]:
        """Of the columns that add up."""
        return self._sums(self.rows)

    def _sums(self, rows: Sequence[Row]) -> dict[str, float]:
        return {c.key: _sum([row[c.key] for row in rows]) for c in self.columns if c.adds}

    @property
    def totals(self) -> Row | None:
        """The row of the sums; None if it is not shown."""
        return {self.columns[0].key: self.total, **self.sums} if self.total else None

    def shown(self, columns: Sequence[Column] | None = None) -> list[ShownRow]:
        """The rows as they are shown, in the order of the first of each.

        columns: those that are shown, the first one among them; None for all
        """
        if not self.folds:
            return [ShownRow(row) for row in self.rows]
        seen = self.columns if columns is None else columns
        alike: dict[Hashable, list[Row]] = {}
        for row in self.rows:
            first, *others = (self.text(column, row) for column in seen)
            key = without_numbers(first), *map(self._alike, seen[1:], others)
            alike.setdefault(key, []).append(row)
        return [ShownRow(self._together(rows), tuple(rows)) for rows in alike.values()]

    @staticmethod
    def _alike(column: Column, text: str) -> str:
        return without_numbers(text) if column.unit == "lines" else text

    def _together(self, rows: Sequence[Row]) -> Row:
        name = self.columns[0].key
        names = [str(row[name]) for row in rows]
        return {**rows[0], name: shared_name(names), **self._sums(rows)}

    def text(self, column: Column, row: Row) -> str:
        """What people read in a cell."""
        return written(row.get(column.key), column.unit)

    def to_json(self) -> Any:
        rows = [
            {key: _plain(value) for key, value in row.items() if key != "name" or not self.by_name}
            for row in self.rows
        ]
        if self.by_name:
            return {str(row["name"]): told for row, told in zip(self.rows, rows, strict=True)}
        return rows


@dataclass(frozen=True)
class Figure:
    """One value by its name in JSON and, unless that is "", for people."""

    key: str
    title: str
    value: Value
    unit: Unit = "text"

    @property
    def text(self) -> str:
        return written(self.value, self.unit)


@dataclass(frozen=True)
class Figures:
    """Single values. Its fields are those of `Table`; with the key "" they belong to the whole."""

    key: str
    title: str
    figures: tuple[Figure, ...]
    brief: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> list[Figure]:
        """Those for people."""
        return [figure for figure in self.figures if figure.title and figure.value is not None]

    def in_notation(self, notation: Notation) -> Figures:
        """As `Table` has it; figures are the same in both."""
        del notation
        return self

    def to_json(self) -> Any:
        return {figure.key: _plain(figure.value) for figure in self.figures}


Section = Table | Figures


@dataclass(frozen=True)
class Part:
    """A part of the whole, such as a stage. same_as: the title of an earlier part that is equal."""

    title: str
    sections: tuple[Section, ...]
    same_as: str = ""


@dataclass(frozen=True)
class Report:
    """All that is shown: of the whole, and of its parts.

    closing:   sections of the whole that come after the parts
    parts_key: of the section whose rows are the parts. A single part is the whole: its sections
               stand beside those of the whole, and there is nothing to say of where it is
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    parts: tuple[Part, ...] = ()
    closing: tuple[Section, ...] = ()
    parts_key: str = ""

    def in_notation(self, notation: Notation) -> Report:
        """For people, who read one notation."""

        def told(sections: Sequence[Section]) -> tuple[Section, ...]:
            return tuple(section.in_notation(notation) for section in sections)

        parts = tuple(replace(part, sections=told(part.sections)) for part in self.parts)
        return replace(self, sections=told(self.sections), parts=parts, closing=told(self.closing))

    def all_sections(self) -> Iterator[tuple[str, Section]]:
        """The sections for people with the title of their part, "" for the whole.

        A part that is equal to an earlier one is left out.
        """
        several = len(self.parts) > 1
        for section in self.sections:
            is_of_parts = bool(self.parts_key) and section.key == self.parts_key
            if section.title and (several or not is_of_parts):
                yield "", section
        for part in self.parts:
            for section in () if part.same_as else part.sections:
                if section.title:
                    yield part.title if several else "", section
        for section in self.closing:
            if section.title:
                yield "", section

    def to_json(self) -> dict[str, Any]:
        """One object by the sections' keys; `notes` has all sentences."""
        whole = (*self.sections, *self.closing)
        told, notes = _object(whole), [note for section in whole for note in section.notes]
        if len(self.parts) == 1:
            told |= _object(self.parts[0].sections)
        for number, part in enumerate(self.parts):
            if len(self.parts) > 1:
                told[self.parts_key][number]["plan"] = _object(part.sections)
            notes += [note for section in part.sections for note in section.notes]
        return {**told, "notes": list(dict.fromkeys(notes))}


def _object(sections: Sequence[Section]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for section in sections:
        if section.key:
            told[section.key] = section.to_json()
        else:
            told |= section.to_json()
    return told


def _sum(values: Sequence[Value]) -> float:
    return sum(value for value in values if isinstance(value, (int, float)))


def _plain(value: Value) -> Any:
    """As JSON knows it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Split):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
