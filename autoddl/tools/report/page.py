"""A report as one HTML page: with everything in it, nothing fetched from elsewhere.

The template (`page.html.j2`, `page.css`) lays out the sections of `plans.report`; what this module
adds is how wide bars are, which is as their values are large, per section, and their colours.
`page.js` draws what `plans.report.drawing` says: blocks of tensors, memory over a step, a timeline.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plans import Plan
from ...plans.format import Value
from ...plans.report import report
from ...plans.report.changes import Change
from ...plans.report.drawing import drawing
from ...plans.report.sections import Figures, Report, Section, ShownRow, Table
from ...plans.stage import COPIES, MEANINGS, Split

# what takes time -> the class of the style sheet that colours it
TIMES = {
    "computation": "compute",
    "backward pass": "B",
    "its half for the weights": "W",
    "between hosts": "inter",
    "inside a host": "intra",
    "over either link": "communication",
}
DRAWN = {"stages", "time", "memory", "layers", "schemes"}  # sections with colours
WORDS = ("text", "lines", "split")  # units of columns that are read


@dataclass(frozen=True)
class Segment:
    """A piece of a bar: its name and text, its colour (a class of the style sheet), its width."""

    name: str
    style: str
    text: str
    percent: float


def page(plan: Plan, anew: Sequence[Change] = ()) -> str:
    """The page's HTML. anew: what was planned anew for a change."""
    return render(report(plan, anew), drawing(plan))


def render(shown: Report, drawn: Mapping[str, Any] | None = None) -> str:
    """A report's HTML; with what `plans.report.drawing` gives, the pictures as well."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autoddl.tools", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    return template.render(view(shown, drawn))


def view(shown: Report, drawn: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the template needs: the report, the bars of its sections, and what scripts draw."""
    shown = shown.in_notation("words")
    sections: list[dict[str, Any]] = []
    told = set[str]()
    courses = {part["title"]: part["course"] for part in drawn["parts"]} if drawn else {}
    seen = set[str]()
    for part, section in shown.all_sections():
        sections.append(
            {
                "part": part,
                "id": "-".join((section.key or "whole", *part.split()[-1:])),
                "section": section,
                "is_table": isinstance(section, Table),
                "is_first_layers": section.key == "layers" and section.key not in seen,
                "is_first_drawn": section.key in DRAWN and not seen & DRAWN,
                "rows": section.shown() if isinstance(section, Table) else (),
                "bar": bar(section),
                "row_bars": row_bars(section),
                "notes": [note for note in section.notes if note not in told],
                "course": courses.get(part),
            }
        )
        told |= set(section.notes)
        seen.add(section.key)
    return {
        "report": shown,
        "several": len(shown.parts) > 1,
        "sections": sections,
        "same": [(part.title, part.same_as) for part in shown.parts if part.same_as],
        "legend": legend(sections, drawn),
        "splits": split_parts,
        "by_commands": by_commands,
        "words": WORDS,
        "drawing": drawn,
    }


def by_commands(text: str) -> list[str]:
    """A sentence in pieces, of which every second is a command of autoddl that it quotes."""
    return re.split(r"['`](autoddl [^'`]+)['`]", text)


def legend(
    sections: Sequence[Mapping[str, Any]], drawn: Mapping[str, Any] | None
) -> list[tuple[str, dict[str, str]]]:
    """What each colour stands for, once: of time, memory, splits; name and class of the style."""
    bars = [bar for item in sections for bar in (item["bar"], *item["row_bars"])]
    styles = {piece.style for piece in itertools.chain.from_iterable(bars)}
    if drawn and drawn["timeline"]:
        styles |= {kind for _, _, kind, *_ in drawn["timeline"]["bars"] or ()}
    time = {name: style for name, style in TIMES.items() if style in styles}
    causes = [row.values["cause"] for item in sections if item["section"].key == "memory"
              for row in item["rows"]]  # fmt: skip
    causes += [cause for item in sections for cause in (item["course"] or {"causes": ()})["causes"]]
    memory = {str(cause): cause_style(str(cause)) for cause in causes}
    splits = [row.values["split"] for item in sections if item["section"].key == "layers"
              for row in item["rows"]]  # fmt: skip
    words = {part.word for split in splits if isinstance(split, Split) for part in split.parts}
    split = {word: f"word-{word}" for word in MEANINGS if word in words}
    every = ("time", time), ("memory", memory), ("split", split)
    return [(name, found) for name, found in every if found]


def cause_style(cause: str) -> str:
    """The class of the style sheet that colours a cause of time or of memory."""
    if cause == "computation":
        return "compute"
    if cause.startswith(("between ", "inside ")):
        return "inter" if cause.startswith("between ") else "intra"
    return f"held {cause.replace(' ', '-')}"


def bar(section: Section) -> tuple[Segment, ...]:
    """One bar of all rows, where the section says what share of the whole each is."""
    if isinstance(section, Figures) or "share" not in section.sums:
        return ()
    first, size, share = section.columns[0], section.columns[1], section.columns[2]
    field, least = (share, 1.0) if section.sums[share.key] else (size, 0.0)
    # What overlap takes off has no part of the bar, and the parts of a step that overlaps add up
    # to more than the step.
    there = [max(_number(row[field.key]), 0.0) for row in section.rows]
    whole = max(section.sums[field.key], least, sum(there))
    return tuple(
        Segment(
            section.text(first, row),
            cause_style(str(row[first.key])),
            section.text(size, row),
            percent(part, whole),
        )
        for row, part in zip(section.rows, there, strict=True)
    )


def row_bars(section: Section) -> Sequence[tuple[Segment, ...]]:
    """A bar for each shown row that takes time: computation, then communication."""
    if isinstance(section, Figures):
        return ()
    units = {column.key: column.unit for column in section.columns}
    if "communication_s" not in units:
        return ()
    times = [_times(row) for row in section.shown()]
    longest = max((sum(found.values()) for found in times), default=0.0)
    return [
        tuple(
            Segment(name, TIMES[name], "", percent(seconds, longest))
            for name, seconds in found.items()
            if seconds > 0
        )
        for found in times
    ]


def _times(row: ShownRow) -> dict[str, float]:
    """Seconds of computation, and of communication over each link where the row knows them."""
    values: Mapping[str, Value] = row.values
    whole, moved = values.get("iteration_s"), _number(values.get("communication_s"))
    compute_s = _number(values.get("compute_s") if whole is None else _number(whole) - moved)
    if "between_hosts_s" not in values:
        return {"computation": compute_s, "over either link": moved}
    of = row.members or (values,)
    return {
        "computation": compute_s,
        "between hosts": sum(_number(member["between_hosts_s"]) for member in of),
        "inside a host": sum(_number(member["inside_host_s"]) for member in of),
    }


def _number(value: Value) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def split_parts(split: Split) -> list[dict[str, Any]]:
    """The words of a split, each as wide as the logarithm of its devices.

    So widths add up to the whole mesh. Without words one device does the work.
    """
    whole = sum(math.log2(part.parts) for part in split.parts)
    return [
        {
            "style": f"word-{part.word if part.word in MEANINGS else COPIES}",
            "text": f"{part.word} {part.parts}",
            "title": f"{part.word} {part.parts}: {MEANINGS.get(part.word, 'of a tensor')}",
            "percent": percent(math.log2(part.parts), whole),
        }
        for part in split.parts
    ]


def percent(part: Value, whole: float) -> float:
    """For a width; 0 of what is no finite number."""
    size = _number(part)
    return round(100 * size / whole, 4) if whole > 0 and math.isfinite(size) else 0.0
