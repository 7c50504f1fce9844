"""Figures of matplotlib as files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from ..._files import write_atomically


def write_figure(figure: Any, path: str | Path) -> None:
    """A figure of matplotlib as a PNG. Equal ones give equal bytes: it has no date, no version.

    Names in it are text, whatever they look like: only matplotlib's own numbers are formulas.
    """
    for text in figure.findobj(lambda artist: "$" in getattr(artist, "get_text", str)()):
        text.set_parse_math("mathdefault" in text.get_text())
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=100, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())
