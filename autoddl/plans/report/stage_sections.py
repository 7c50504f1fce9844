"""The sections of one stage, or of a plan on one mesh: time, memory, bytes, layers, certificate."""

from __future__ import annotations

import math

from ...cost.tape import Peak
from ...plans.stage_figures import StageFigures, stage_figures
from ..bounds import product_bytes
from ..extrapolation import extrapolated_steps
from ..format import format_bytes, format_seconds, written
from ..savings import savings
from ..stage import StagePlan
from .layers import layers_table
from .sections import Column, Figure, Figures, Row, Section, Table

_ENDS = {
    "done": "",
    "budget": " until its budget ended",
    "interrupted": " until interrupted",
    "size": " until its tables became too large",
    "memory": ", whose bound does not know how full a step's fullest moment is",
}
BESIDE = "less what runs beside computation"
_CAUSES = {"forward": "forward", "backward": "backward", "gradient_sync": "gradients"}
_LINKS = {"between hosts": "inter_s", "inside a host": "intra_s"}


def stage_sections(stage: StagePlan, brief: bool = False) -> tuple[Section, ...]:
    """All sections of a stage, in the order in which they are shown; brief: of its short account.

    That has what a device needs, too.
    """
    known = stage_figures(stage)
    sections = (
        _cost(known),
        None if brief else _time(known),
        _memory(known),
        _kinds(known),
        None if brief else _savings(known),
        None if brief else _link_bytes(known),
        layers_table(stage, brief=brief),
        _search(known),
        None if brief else _bounds(known),
        _timed(known),
        _extrapolated(known),
    )
    return tuple(section for section in sections if section is not None)


def needed_alone(stage: StagePlan) -> tuple[Section, ...]:
    """What a device needs, where all else is told of an equal stage.

    So the short account of GPT-3 175B in 8 stages, six of which are equal, takes half as long.
    """
    return (_memory(stage_figures(stage)),)


def memory_table(peak: Peak, limit_bytes: float, may_be_off: float = 0) -> Table:
    """What a device holds at the fullest moment of a step, by cause, held against the limit.

    may_be_off: bytes that are added because the prediction may be off by as much
    """
    causes = {**peak.by_cause, "what the prediction may be off": may_be_off}
    rows: list[Row] = [
        {"cause": cause, "bytes": size, "share": size / limit_bytes}
        for cause, size in sorted(causes.items(), key=lambda item: -item[1])
        if size
    ]
    needed = peak.bytes + may_be_off
    share = f" ({needed / limit_bytes:.1%})" if math.isfinite(limit_bytes) else ""
    return Table(
        "memory",
        "Memory of a device",
        (
            Column("cause", "cause"),
            Column("bytes", "bytes", "bytes", adds=True),
            Column("share", "of limit", "share", adds=True),
        ),
        tuple(rows),
        total="needed",
        notes=(
            f"needs {format_bytes(needed)} of {format_bytes(limit_bytes)} a device{share} at the "
            f"fullest moment of a step: {peak.moment}",
        ),
    )


def _cost(known: StageFigures) -> Figures:
    cost = known.cost
    figures = (
        Figure("iteration_s", "a step", cost.iteration_s, "seconds"),
        Figure("compute_s", "computation", cost.compute_s, "seconds"),
        Figure("communication_s", "communication", cost.communication_s, "seconds"),
    )
    if cost.hidden_s:
        hidden = Figure("hidden_s", "of it beside computation", cost.hidden_s, "seconds")
        figures = (*figures, hidden)
    return Figures("cost", "Predicted", figures, brief=True)


def _time(known: StageFigures) -> Table:
    cost = known.cost
    parts = {"computation": cost.compute_s}
    for link, field in _LINKS.items():
        for cause, name in _CAUSES.items():
            parts[f"{link}, {name}"] = getattr(getattr(cost, field), cause)
    parts[BESIDE] = -cost.hidden_s
    rows: list[Row] = [
        {"cause": cause, "seconds": seconds, "share": seconds / cost.iteration_s}
        for cause, seconds in parts.items()
        if seconds
    ]
    columns = (
        Column("cause", "cause"),
        Column("seconds", "seconds", "seconds", adds=True),
        Column("share", "share", "share", adds=True),
    )
    return Table("time", "Where the time goes", columns, tuple(rows), total="a step")


def _memory(known: StageFigures) -> Table:
    peak, needed = known.executor_peak, known.required_bytes()
    if needed > peak.bytes:
        peak = known.memory_peak("graph")
    return memory_table(peak, known.limit_bytes, max(needed - peak.bytes, 0))


def _kinds(known: StageFigures) -> Table | None:
    """What the devices of each kind need, where more than one kind may be the fullest."""
    if len(known.needed_by_kind) < 2:
        return None
    cluster = known.stage.cluster
    rows: list[Row] = [
        {
            "hosts": ", ".join(dict.fromkeys(map(cluster.group_name, view.hosts))),
            "bytes": needed,
            "limit_bytes": (limit := known.stage.memory_limit_bytes * view.times),
            "share": needed / limit,
        }
        for view, needed in known.needed_by_kind
    ]
    columns = (
        Column("hosts", "devices of"),
        Column("bytes", "needed", "bytes"),
        Column("limit_bytes", "of at most", "bytes"),
        Column("share", "of limit", "share"),
    )
    note = "devices of other kinds hold no more than one of these, of no less memory"
    notes = (note,) if len(rows) < len(cluster.kinds) else ()
    return Table(
        "memory_by_kind", "Memory of each kind of device", columns, tuple(rows), notes=notes
    )


def _savings(known: StageFigures) -> Table | None:
    """What is done to save memory, and what each of it costs, or wins, in time."""
    rows: list[Row] = []
    found = savings(known.stage)
    if found.accumulation is not None and found.accumulation.saved_bytes > 0:
        how = f"gradients of {known.stage.micro_batches} micro-batches are accumulated"
        rows.append(_saving("accumulation", how, found.accumulation.saved_bytes,
                            found.accumulation.extra_s))  # fmt: skip
    if found.storage is not None:
        counts = [f"{n} in stage {zero}" for zero, n in sorted(found.operators.items())]
        how = f"ZeRO splits the parameters of {', '.join(counts)} (operators)"
        rows.append(_saving("zero", how, found.storage.saved_bytes, found.storage.extra_s))
    notes: tuple[str, ...] = ()
    if known.stage.recomputed:
        kept, blocks = stage_figures(known.stage.keeping_all()), len(known.stage.recomputed)
        before, after = kept.executor_peak.bytes, known.executor_peak.bytes
        extra = known.cost.iteration_s - kept.cost.iteration_s
        which = f"{blocks} block{'' if blocks == 1 else 's'}"
        rows.append(_saving("recomputation", f"{which} run forward again", before - after, extra))
        notes = (
            f"{which} keep only their inputs and run forward again before their backward pass: at "
            f"the fullest moment {format_bytes(after)} instead of {format_bytes(before)}, for "
            f"{format_seconds(extra)} more",
        )
    if not rows:
        return None
    columns = (
        Column("how", "what saves memory"),
        Column("saved_bytes", "saves", "bytes"),
        Column("extra_s", "costs", "more_seconds"),
    )
    title = "What saves memory"
    return Table("savings", title, columns, tuple(rows), by_name=True, notes=notes)


def _saving(name: str, how: str, saved_bytes: float, extra_s: float) -> Row:
    rounding = abs(extra_s) < 1e-9
    return {
        "name": name,
        "how": how,
        "saved_bytes": saved_bytes,
        "extra_s": 0.0 if rounding else extra_s,
    }


def _link_bytes(known: StageFigures) -> Table:
    cost = known.cost
    names = {"per_nic": "through each host's NIC", "per_device_intra": "inside a host, each device"}
    rows: list[Row] = [
        {
            "name": name,
            "link": names[name],
            "forward": traffic.forward,
            "backward": traffic.backward,
            "gradient_sync": traffic.gradient_sync,
            "total": traffic.total,
        }
        for name, traffic in zip(names, (cost.nic_bytes, cost.intra_bytes), strict=True)
    ]
    columns = (
        Column("link", "link"),
        *(Column(cause, name, "bytes") for cause, name in _CAUSES.items()),
        Column("total", "all", "bytes"),
    )
    return Table("link_bytes", "Bytes of a step", columns, tuple(rows), by_name=True)


def _search(known: StageFigures) -> Figures:
    """How good the plan is in the searched space."""
    search, gap = known.stage.search, known.gap
    algorithm = search.algorithm + _ENDS.get(search.end, "")
    if gap is None:
        proven = ", which proves nothing about better plans"
    elif gap == 0:
        proven = "; optimal in this space for its micro-batches (gap 0)"
    else:
        most = written(gap, "share")
        proven = f"; no plan in this space with as many micro-batches is more than {most} faster"
    figures = (
        Figure("algorithm", "", search.algorithm),
        Figure("evaluations", "", search.evaluations, "count"),
        Figure("seconds", "", search.seconds or None, "seconds"),  # of a file nobody knows
        Figure("end", "", search.end),
        Figure("lower_bound_s", "lower bound", search.lower_bound_s, "seconds"),
        Figure("gap", "gap", gap, "share"),
        Figure("proven", "", gap == 0.0),
    )
    note = f"found by {algorithm}{proven}"
    return Figures("search", "How good it is", figures, brief=True, notes=(note,))


def _bounds(known: StageFigures) -> Figures:
    """How good the plan is against any algorithm for its products."""
    found, notes = product_bytes(known.stage), ()
    if found.ratio is not None:
        part = ""
        if found.divided < found.products:
            part = f" ({found.divided} of its {found.products} matrix products count for this)"
        notes = (
            f"moves {found.ratio:.3g} times the least that any algorithm could: each device "
            f"receives {format_bytes(found.moved)}, and at least {format_bytes(found.least)}{part}",
        )
    figures = (
        Figure("moved_bytes", "", found.moved, "bytes"),
        Figure("matmul_bytes", "", found.least, "bytes"),
        Figure("memory_independent_bytes", "", found.memory_independent, "bytes"),
        Figure("memory_dependent_bytes", "", found.memory_dependent, "bytes"),
        Figure("moved_over_bound", "", found.ratio, "times"),
        Figure("products", "", found.products, "count"),
        Figure("products_divided", "", found.divided, "count"),
    )
    return Figures("bounds", "Against any algorithm" if notes else "", figures, notes=notes)


def _timed(known: StageFigures) -> Figures:
    """Where the seconds of computation come from."""
    timed, computing = known.timed.timed, known.timed.computing
    notes: tuple[str, ...] = ()
    if computing:
        text = f"{timed} of {computing} operators were timed by themselves on this machine"
        rest = (
            f"; the other {computing - timed} are priced by its rates, for better prices "
            "calibrate with --model"
        )
        notes = (text + rest if timed < computing else text,)
    figures = (
        Figure("timed", "", timed, "count"),
        Figure("computing", "", computing, "count"),
    )
    title = "Operators timed by themselves" if computing else ""
    return Figures("timed_operators", title, figures, brief=True, notes=notes)


def _extrapolated(known: StageFigures) -> Table:
    """Which prices are extrapolated."""
    found, notes = extrapolated_steps(known.stage), ()
    if found:
        first = found[0]
        notes = (
            f"extrapolated: {sum(e.count for e in found)} redistribution steps lie far outside "
            f"what was measured on this machine, such as {first.kind} of "
            f"{format_bytes(first.bytes)} in groups of {first.nodes}x{first.gpus} at {first.op}; "
            "calibrate with larger messages or more hosts",
        )
    columns = (
        Column("kind", "collective"),
        Column("nodes", "hosts", "count"),
        Column("gpus", "devices", "count"),
        Column("bytes", "message", "bytes"),
        Column("count", "steps", "count"),
        Column("op", "such as at"),
    )
    rows = tuple({c.key: getattr(steps, c.key) for c in columns} for steps in found)
    title = "Prices far from what was measured" if found else ""
    return Table("extrapolated", title, columns, rows, brief=True, notes=notes)
