"""A report as one HTML page: with everything in it, nothing fetched from elsewhere.

The template (`page.html.j2`) lays out the sections of `plans.report`; what this module adds is how
wide bars are. Bars are as wide as their values are large, per section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plans import Plan
from ...plans.format import Value
from ...plans.records import COPIES, MEANINGS, Split
from ...plans.report import report
from ...plans.report.sections import Figures, Report, Section, ShownRow, Table


@dataclass(frozen=True)
class Segment:
    """A piece of a bar: its name and text, its colour (a class of the style sheet), its width."""

    name: str
    style: str
    text: str
    percent: float


def page(plan: Plan) -> str:
    """The page's HTML."""
    return render(report(plan))


def render(shown: Report) -> str:
    """A report's HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autoddl.tools", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    return template.render(view(shown))


def view(shown: Report) -> dict[str, Any]:
    """What the template needs: the report, and the bars of its sections."""
    shown = shown.in_notation("words")
    sections, told = [], set[str]()
    for part, section in shown.all_sections():
        sections.append(
            {
                "part": part,
                "id": "-".join((section.key or "whole", *part.split()[-1:])),
                "section": section,
                "is_table": isinstance(section, Table),
                "rows": section.shown() if isinstance(section, Table) else (),
                "bar": bar(section),
                "row_bars": row_bars(section),
                "notes": [note for note in section.notes if note not in told],
            }
        )
        told |= set(section.notes)
    same = [(part.title, part.same_as) for part in shown.parts if part.same_as]
    return {
        "report": shown,
        "sections": sections,
        "same": same,
        "splits": split_parts,
    }


def bar(section: Section) -> tuple[Segment, ...]:
    """One bar of all rows, where the section says what share of the whole each is."""
    if isinstance(section, Figures) or "share" not in section.sums:
        return ()
    first, size, share = section.columns[0], section.columns[1], section.columns[2]
    whole = max(section.sums[share.key], 1.0) if section.sums[share.key] else section.sums[size.key]
    field = share if section.sums[share.key] else size
    return tuple(
        Segment(
            section.text(first, row),
            f"part{number}",
            section.text(size, row),
            percent(row[field.key], whole),
        )
        for number, row in enumerate(section.rows)
    )


def row_bars(section: Section) -> Sequence[tuple[Segment, ...]]:
    """A bar for each shown row that takes time: computation, then communication."""
    if isinstance(section, Figures):
        return ()
    units = {column.key: column.unit for column in section.columns}
    if "communication_s" not in units:
        return ()
    times = [_times(row) for row in section.shown()]
    longest = max((sum(pair) for pair in times), default=0.0)
    names = ("computation", "compute"), ("communication", "communication")
    return [
        tuple(
            Segment(name, style, "", percent(seconds, longest))
            for (name, style), seconds in zip(names, pair, strict=True)
            if seconds > 0
        )
        for pair in times
    ]


def _times(row: ShownRow) -> tuple[float, float]:
    """Seconds of computation and of communication."""
    values: Mapping[str, Value] = row.values
    whole, moved = values.get("iteration_s"), _number(values.get("communication_s"))
    return _number(values.get("compute_s") if whole is None else _number(whole) - moved), moved


def _number(value: Value) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def split_parts(split: Split) -> list[dict[str, Any]]:
    """The words of a split, each as wide as the logarithm of its devices.

    So widths add up to the whole mesh. Without words one device does the work.
    """
    whole = sum(math.log2(part.parts) for part in split.parts)
    return [
        {
            "style": style_of(part.word),
            "text": f"{part.word} {part.parts}",
            "title": f"{part.word} {part.parts}: {MEANINGS.get(part.word, 'of a tensor')}",
            "percent": percent(math.log2(part.parts), whole),
        }
        for part in split.parts
    ]


def style_of(word: str) -> str:
    """The class of the style sheet that colours a word."""
    return f"word-{word if word in MEANINGS else COPIES}"


def percent(part: Value, whole: float) -> float:
    """For a width; 0 of what is no finite number."""
    size = _number(part)
    return round(100 * size / whole, 4) if whole > 0 and math.isfinite(size) else 0.0
