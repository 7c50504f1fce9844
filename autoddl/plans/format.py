"""Numbers with their units, and names, as people read them; and what is left of planning.

Each part of planning knows what comes after it: a search how many others may, the search for a plan
the known schemes, a comparison what else it compares with. So it runs in a block,

    with before("known schemes"):
        ...

and what is left is what all blocks around the present part say, the nearest first. The logger
`LEFT` is told whenever that changes. How long a part takes nobody knows before.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from .stage import Split

Value = str | float | int | bool | None | tuple[str, ...] | Split
Unit = Literal[
    "text", "lines", "count", "seconds", "more_seconds", "bytes", "more_bytes", "share", "times",
    "split", "topology", "signature",
]  # fmt: skip


LEFT = "autoddl.left"
_left_log = logging.getLogger(LEFT)
_MOST_LEFT = 2  # parts that are named: with more a line of 80 characters has no room for the rest
_after: ContextVar[tuple[str, ...]] = ContextVar("after", default=())
ROUNDING = 1e-14  # what is left of the difference of equal numbers


def written(value: Value, unit: Unit) -> str:
    """What people read of a value; "" of None.

    more_seconds, more_bytes: with their sign; topology, signature: without what goes without saying
    """
    if value is None or value == "":
        return ""
    if isinstance(value, Split):
        return str(value)
    if isinstance(value, tuple):
        return "\n".join(value)
    if isinstance(value, str):
        short = {"topology": short_topology, "signature": short_signature}.get(unit)
        return short(value) if short else value
    if unit in ("seconds", "more_seconds"):
        return _signed(value, unit) + format_seconds(value)
    if unit in ("bytes", "more_bytes"):
        return _signed(value, unit) + format_bytes(value)
    if unit == "share":
        return f"{_plain(100 * value)} %" if abs(value) > ROUNDING else "0 %"
    if unit == "times":
        return f"{value:.3g}" if value >= 10 else f"{value:.2f}"
    return str(value)


def _plain(value: float) -> str:
    """Three digits, without an exponent: 0.0000512."""
    text = f"{value:.3g}"
    if "e" in text:
        return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return text


def _signed(value: float, unit: Unit) -> str:
    return "+" if unit.startswith("more") and value > 0 else ""


def format_bytes(n: float) -> str:
    """1536 -> '1.54 kB' (decimal units)."""
    if n == math.inf:
        return "unlimited memory"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 999.5 or unit == "TB":  # as much is written as 1000, which is 1 of the next
            return f"{n:.0f} B" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError


def format_at_least(n: float) -> str:
    """Rounded up: a limit of so many bytes admits `n`. 1531 -> '1.54 kB'."""
    digit = 10.0 ** max(0, math.floor(math.log10(n)) - 2)
    return format_bytes(math.ceil(n / digit) * digit)


def format_seconds(s: float) -> str:
    """0.00234 -> '2.34 ms'."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(s) >= 0.9995 * scale:  # what is written as 1000 of the next
            return f"{s / scale:.3g} {unit}"
    return "0 s" if s == 0 else f"{s / 1e-9:.3g} ns"


def without_numbers(name: str) -> str:
    """`blocks.3.fc1` -> `blocks.*.fc*`."""
    return re.sub(r"\d+", "*", name)


def shared_name(names: Sequence[str]) -> str:
    """Of names that differ in numbers only, with `*` for those that differ.

    `blocks.0.fc1`, `blocks.1.fc1` -> `blocks.*.fc1`
    """
    parts = zip(*(re.split(r"(\d+)", name) for name in names), strict=True)
    return "".join(same[0] if len(set(same)) == 1 else "*" for same in parts)


def short_topology(topology: str) -> str:
    """The topology without its groups of one device: `(S0:(2,1), B:(1,1))` -> `(S0:(2,1))`."""
    parts = [f"{name}:{group}" for name, group in re.findall(r"(\w+):(\([^)]*\))", topology)]
    return f"({', '.join(part for part in parts if not part.endswith(':(1,1)'))})"


def short_signature(signature: str) -> str:
    """Runs of equal labels counted: `(S0, S0, B) -> (P, P, P)` becomes `(S0*2, B) -> (P*3)`."""
    return re.sub(r"\b(\w+)((?:, \1\b)+)", _counted, signature)


def _counted(run: re.Match[str]) -> str:
    return f"{run[1]}*{1 + run[2].count(',')}"


@contextmanager
def before(*what: str) -> Iterator[None]:
    """A part of planning, after which comes `what`, the nearest first; "" is nothing."""
    token = _after.set((*filter(None, what), *_after.get()))
    _tell()
    try:
        yield
    finally:
        _after.reset(token)
        _tell()


def more(count: int, one: str, many: str = "", most: bool = False) -> str:
    """`2 more stages`; "" for none. most: there may be fewer. many: with an s if not given."""
    if count <= 0:
        return ""
    name = one if count == 1 else many or f"{one}s"
    return f"{'up to ' if most else ''}{count} more {name}"


def _tell() -> None:
    left = _after.get()
    _left_log.info(f"left: {_few(left)}" if left else "the last part")


def _few(names: Sequence[str]) -> str:
    """The first ones of these, and how many more there are."""
    first, others = names[:_MOST_LEFT], len(names) - _MOST_LEFT
    return ", ".join(first) + (f" and {others} more" if others > 0 else "")
