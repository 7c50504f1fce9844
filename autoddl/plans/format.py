"""What explanations and reports of plans have in common: numbers with units, and some lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..cost.account import Cost
from ..cost.extrapolation import Extrapolated
from ..cost.savings import Saving, Savings
from ..cost.timed import Timed
from ..graph.placed import PlannedBaseline, PlannedLayer


@dataclass(frozen=True)
class LayerText:
    """A layer with its cost, and how its parameters are stored; "" if they are whole."""

    layer: PlannedLayer
    cost: Cost
    storage: str = ""


@dataclass(frozen=True)
class LayerRow:
    """Layers that are planned alike: `name` has `*` where they differ; costs are of one of them."""

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


def layer_rows(layers: Sequence[LayerText]) -> list[LayerRow]:
    """Layers in order, those alike but for the numbers in their names folded into one row."""
    rows: dict[tuple[str, ...], list[LayerText]] = {}
    for text in layers:
        layer, seconds = text.layer, f"{text.cost.communication_s:.6g}"
        pattern = re.sub(r"\d+", "*", layer.name)
        key = (pattern, layer.op, layer.topology, layer.signature, seconds, text.storage)
        rows.setdefault(key, []).append(text)
    return [
        LayerRow(
            members[0].layer.name if len(members) == 1 else key[0],
            len(members),
            members[0].layer,
            members[0].cost,
            members[0].storage,
        )
        for key, members in rows.items()
    ]


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
