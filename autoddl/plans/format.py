"""What explanations and reports of plans have in common: numbers with units, and some lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ..cost.account import Cost, total
from ..cost.extrapolation import Extrapolated
from ..cost.operators import Timed
from ..cost.savings import Saving, Savings
from .records import PlannedBaseline, PlannedLayer


@dataclass(frozen=True)
class LayerText:
    """A layer with its cost, and how its parameters are stored; "" if they are whole."""

    layer: PlannedLayer
    cost: Cost
    storage: str = ""


@dataclass(frozen=True)
class LayerRow:
    """Layers that show the same plan and the same figures, in one row.

    name:  theirs, see `shared_name`
    layer: one of them, as is `storage`
    cost:  of all of them together: the rows of a plan add up to its totals
    """

    name: str
    count: int
    layer: PlannedLayer
    cost: Cost
    storage: str = ""


def format_bytes(n: float) -> str:
    """1536 -> '1.54 kB' (decimal units)."""
    if n == math.inf:
        return "unlimited memory"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 1000 or unit == "TB":
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
        if abs(s) >= scale:
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


def layer_rows(
    layers: Sequence[LayerText], also: Callable[[PlannedLayer], Hashable] | None = None
) -> list[LayerRow]:
    """Layers in order, those of which all that is shown is equal folded into one row.

    also: what is shown of a layer beside its plan and its figures
    """
    rows: dict[Hashable, list[LayerText]] = {}
    for text in layers:
        rows.setdefault((_shown(text), also and also(text.layer)), []).append(text)
    return [
        LayerRow(
            shared_name([text.layer.name for text in members]),
            len(members),
            members[0].layer,
            total(text.cost for text in members),
            members[0].storage,
        )
        for members in rows.values()
    ]


def _shown(text: LayerText) -> tuple[str, ...]:
    """Of a layer, as it is shown: what it is, and its figures in the digits that are printed."""
    layer, cost = text.layer, text.cost
    seconds = cost.compute_s, cost.communication_s, cost.iteration_s, layer.alternative_extra_s
    sizes = cost.nic_bytes.total, cost.intra_bytes.total, cost.memory_bytes
    return (
        without_numbers(layer.name), layer.op, layer.topology, layer.signature, text.storage,
        layer.alternative, *map(format_seconds, seconds), *map(format_bytes, sizes),
    )  # fmt: skip


def savings_lines(micro_batches: int, savings: Savings) -> list[str]:
    """What is done to save memory, and what it costs."""
    lines = []
    if savings.accumulation is not None:
        lines.append(
            f"gradients of {micro_batches} micro-batches are accumulated: "
            f"{saving_text(savings.accumulation)}"
        )
    if savings.storage is not None:
        counts = [f"{n} in stage {stage}" for stage, n in sorted(savings.operators.items())]
        lines.append(
            f"ZeRO splits the parameters of {', '.join(counts)} (operators): "
            f"{saving_text(savings.storage)}"
        )
    return lines


def saving_text(saving: Saving) -> str:
    """Bytes saved, and what they cost or win in time."""
    seconds = format_seconds(abs(saving.extra_s))
    costs = f"costs {seconds}" if saving.extra_s >= 0 else f"wins {seconds}"
    if abs(saving.extra_s) < 1e-9:  # rounding
        costs = "costs no time"
    return f"saves {format_bytes(saving.saved_bytes)} a device, {costs}"


def unfit_text(baseline: PlannedBaseline) -> str:
    """Why a known scheme is out of the question."""
    if baseline.memory_bytes is None:
        return "does not divide the batch"
    return f"does not fit, it needs {format_bytes(baseline.memory_bytes)} a device"


def timed_text(timed: Timed) -> str:
    """Where the seconds of computation come from."""
    rest = timed.computing - timed.timed
    text = f"{timed.timed} of {timed.computing} operators were timed by themselves on this machine"
    if rest:
        text += (
            f"; the other {rest} are priced by its rates, for better prices calibrate with --model"
        )
    return text


def extrapolation_text(extrapolated: Sequence[Extrapolated]) -> str:
    """Which prices are extrapolated."""
    first = extrapolated[0]
    return (
        f"extrapolated: {sum(e.count for e in extrapolated)} redistribution steps lie far outside "
        f"what was measured on this machine, such as {first.kind} of {format_bytes(first.bytes)} "
        f"in groups of {first.nodes}x{first.gpus} at {first.op}; calibrate with larger messages "
        "or more hosts"
    )
