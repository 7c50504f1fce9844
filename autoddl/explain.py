"""A plan in words and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .cluster.spec import Cluster
from .cost.account import Cost
from .cost.extrapolation import Extrapolated
from .cost.products import ProductBytes
from .cost.savings import Saving, Savings
from .cost.timed import Timed
from .planned import PlannedBaseline, PlannedLayer


@dataclass(frozen=True)
class EdgeText:
    """The redistributions at input `index` of operator `op`, as text."""

    op: str
    index: int
    placement: str
    forward: Sequence[str]
    backward: Sequence[str]


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
            f"{_saving_text(savings.accumulation)}"
        )
    if savings.storage is not None:
        counts = [f"{n} in stage {stage}" for stage, n in sorted(savings.operators.items())]
        lines.append(
            f"ZeRO splits the parameters of {', '.join(counts)} (operators): "
            f"{_saving_text(savings.storage)}"
        )
    return lines


def storage_text(stages: Sequence[int], savings: Sequence[Saving]) -> str:
    """How a layer stores its parameters; "" if whole."""
    if not stages:
        return ""
    every = Saving(sum(s.saved_bytes for s in savings), sum(s.extra_s for s in savings))
    named = "/".join(map(str, sorted(set(stages))))
    return f"parameters split, ZeRO stage {named}: {_saving_text(every)}"


def _saving_text(saving: Saving) -> str:
    seconds = format_seconds(abs(saving.extra_s))
    costs = f"costs {seconds}" if saving.extra_s >= 0 else f"wins {seconds}"
    if abs(saving.extra_s) < 1e-9:  # rounding
        costs = "costs no time"
    return f"saves {format_bytes(saving.saved_bytes)} a device, {costs}"


def plan_text(
    model: str,
    cluster: Cluster,
    batch: int,
    micro_batches: int,
    cost: Cost,
    limit_bytes: float,
    layers: Sequence[LayerText],
    certificate: str,
    savings: Savings,
    baselines: Sequence[PlannedBaseline] = (),
    extrapolated: Sequence[Extrapolated] = (),
    saved: str = "",
    precision: str = "float32",
    timed: Timed | None = None,
    peak_bytes: int | None = None,
) -> str:
    """The whole plan: its cost, where the bytes go, each layer's choice with the next best.

    peak_bytes: at the fullest moment of a step, if it is known
    """
    rounds = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
    share = cost.communication_s / cost.iteration_s if cost.iteration_s else 0.0
    nic, intra = cost.nic_bytes, cost.intra_bytes
    lines = [
        f"{model} on {cluster}: a batch of {batch}{rounds}{_PRECISION_TEXT.get(precision, '')}",
        f"predicted {format_seconds(cost.iteration_s)} an iteration: "
        f"{format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication ({share:.0%})",
        f"memory {format_bytes(cost.memory_bytes)} of {format_bytes(limit_bytes)} a device"
        + (f", {format_bytes(peak_bytes)} at the fullest moment" if peak_bytes else ""),
        *savings_lines(micro_batches, savings),
        f"through each host's NIC {format_bytes(nic.total)} "
        f"(forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}); inside a host, each device "
        f"{format_bytes(intra.total)}",
        *([saved] if saved else []),
        certificate,
    ]
    lines.extend(baseline_lines(cost.iteration_s, baselines))
    if cluster.num_devices > 1 and cost.communication_s == 0:
        lines.append(
            "every device does the whole work: by the prices of this machine any split of so small "
            "a model costs more time than it saves"
        )
    if extrapolated:
        lines.append(extrapolation_text(extrapolated))
    if timed and timed.computing:
        lines.append(timed_text(timed))
    lines.append("")
    for row in layer_rows(layers):
        times = f" (x{row.count})" if row.count > 1 else ""
        lines.append(f"{row.name}{times}  {row.layer.op}  {row.layer.topology}")
        lines.append(f"    {row.layer.signature}")
        lines.append(
            f"    {format_seconds(row.cost.compute_s)} computation, "
            f"{format_seconds(row.cost.communication_s)} communication, "
            f"{format_bytes(row.cost.memory_bytes)}; {_why(row.layer, cost)}"
        )
        if row.storage:
            lines.append(f"    {row.storage}")
    return "\n".join(lines)


def recomputation_text(
    blocks: int, cost: Cost, kept: Cost, peaks: tuple[int | None, int | None]
) -> str:
    """What it saves and costs to run blocks again; `kept`, and the second peak, are without it."""
    extra = cost.iteration_s - kept.iteration_s
    fullest = ""
    if peaks[0] is not None and peaks[1] is not None:
        fullest = (
            f" (at the fullest moment {format_bytes(peaks[0])} instead of {format_bytes(peaks[1])})"
        )
    return (
        f"{blocks} block{'' if blocks == 1 else 's'} keep only their inputs and run forward again "
        f"before their backward pass: memory {format_bytes(cost.memory_bytes)} instead of "
        f"{format_bytes(kept.memory_bytes)}{fullest}, for {format_seconds(extra)} more "
        f"({format_seconds(cost.compute_s - kept.compute_s)} computation, "
        f"{format_seconds(cost.communication_s - kept.communication_s)} communication)"
    )


_PRECISION_TEXT = {
    "float16": "; float16 with float32 master weights in the optimizer, and loss scaling"
}
_ENDS = {"done": "", "budget": " until its budget ended", "interrupted": " until interrupted"}


def certificate_text(algorithm: str, end: str, gap: float | None, products: ProductBytes) -> str:
    """How good the plan is: in the searched space, and against any algorithm for its products."""
    algorithm += _ENDS.get(end, "")
    if gap is None:
        found = f"found by {algorithm}, which proves nothing about better plans"
    elif gap == 0:
        found = f"found by {algorithm}; optimal in this space (gap 0)"
    else:
        found = f"found by {algorithm}; no plan in this space is more than {gap:.2%} faster"
    if products.ratio is None:
        return found
    part = ""
    if products.divided < products.products:
        part = f" ({products.divided} of its {products.products} matrix products count for this)"
    moved, least = format_bytes(products.moved), format_bytes(products.least)
    return (
        f"{found}; moves {products.ratio:.3g} times the least that any algorithm could: each "
        f"device receives {moved}, and at least {least}{part}"
    )


def baseline_lines(iteration_s: float, baselines: Sequence[PlannedBaseline]) -> list[str]:
    """The known schemes beside the plan, the closest first, one line each."""
    if not baselines:
        return []
    lines = ["known schemes, each on its best topology:"]
    for baseline in sorted(baselines, key=lambda b: b.iteration_s or float("inf")):
        if baseline.iteration_s is None:
            lines.append(f"    {baseline.name} ({baseline.topology}): {unfit_text(baseline)}")
            continue
        times = baseline.iteration_s / iteration_s if iteration_s else 1.0
        rounds = "" if baseline.micro_batches == 1 else f" in {baseline.micro_batches} rounds"
        lines.append(
            f"    {baseline.name} ({baseline.topology}){rounds}: "
            f"{format_seconds(baseline.iteration_s)}, {times:.2f} times as long"
        )
    return lines


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


def _why(layer: PlannedLayer, cost: Cost) -> str:
    if not layer.alternative:
        return "no other topology divides this layer"
    extra = layer.alternative_extra_s
    share = extra / cost.iteration_s if cost.iteration_s else 0.0
    return f"next best {layer.alternative}: {format_seconds(extra)} more ({share:+.1%})"


def layer_text(
    layer: PlannedLayer,
    layer_cost: Cost,
    whole: Cost,
    edges: Sequence[EdgeText],
    storage: str = "",
) -> str:
    """One layer: its placements, each redistribution step, and what they cost."""
    nic = layer_cost.nic_bytes
    lines = [
        f"{layer.name}  {layer.op}  {layer.topology}",
        f"  {layer.signature}",
        f"  {format_seconds(layer_cost.compute_s)} computation, "
        f"{format_seconds(layer_cost.communication_s)} communication of "
        f"{format_seconds(whole.iteration_s)} an iteration; "
        f"{format_bytes(layer_cost.memory_bytes)} a device",
        f"  NIC: forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}",
        f"  {_why(layer, whole)}",
        *([f"  {storage}"] if storage else []),
    ]
    for edge in edges:
        lines.append(f"  input {edge.index} of {edge.op} -> {edge.placement}")
        if edge.forward:
            lines.append(f"    forward   {'; '.join(edge.forward)}")
        if edge.backward:
            lines.append(f"    backward  {'; '.join(edge.backward)}")
    return "\n".join(lines)
