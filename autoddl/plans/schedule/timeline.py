"""A timeline as a picture and as a trace that Perfetto and Chrome open."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..._files import write_atomically
from ..report.figure_file import write_figure
from .orders import Action
from .simulate import Exchange, Span, Timeline

ONCE = "exchange, once a step"
_COLOURS = {  # those of the page
    "F": "#8fa3b8", "B": "#52687f", "W": "#bcc9d6",
    "SF": "#f0a878", "SB": "#cf5f26", ONCE: "#9a3c12",
}  # fmt: skip
_NAMES = {
    "F": "forward", "B": "backward, inputs", "W": "backward, weights",
    "SF": "send activations", "RF": "receive activations",
    "SB": "send gradients", "RB": "receive gradients",
}  # fmt: skip
_LEGEND = {**_NAMES, "SF": "activations travel", "SB": "gradients travel"}


def trace_json(timeline: Timeline) -> dict[str, Any]:
    """The Chrome trace event format: a process per stage, a thread per stream, microseconds."""
    events: list[dict[str, Any]] = []
    for stage in range(timeline.schedule.stages):
        events.append(_name("process_name", stage, 0, f"stage {stage}"))
        events.append(_name("thread_name", stage, 0, "computation"))
        events.append(_name("thread_name", stage, 1, "communication"))
    for span in timeline.spans:
        action = span.action
        events.append(
            {
                "name": str(action),
                "cat": _NAMES[action.kind],
                "ph": "X",
                "pid": span.stage,
                "tid": 0 if action.is_compute else 1,
                "ts": span.start_s * 1e6,
                "dur": (span.end_s - span.start_s) * 1e6,
                "args": {"micro_batch": action.micro_batch, "chunk": action.chunk},
            }
        )
    for exchange in timeline.exchanges:
        events.append(
            {
                "name": exchange.what,
                "cat": ONCE,
                "ph": "X",
                "pid": exchange.stage,
                "tid": 1,
                "ts": exchange.start_s * 1e6,
                "dur": (exchange.end_s - exchange.start_s) * 1e6,
                "args": {"part": exchange.part},
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def save_trace(timeline: Timeline, path: str | Path) -> None:
    """Write the trace to `path` (JSON)."""
    write_atomically(path, json.dumps(trace_json(timeline)))


def save_picture(timeline: Timeline, path: str | Path, title: str = "") -> None:
    """Write a PNG: two rows per stage, computation above communication.

    Raises ValueError if matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            "a timeline picture needs matplotlib (pip install matplotlib); "
            "a trace (--trace) needs none"
        ) from error
    schedule = timeline.schedule
    figure = Figure(figsize=(10, 1.7 + 0.7 * schedule.stages))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    whole_s = timeline.iteration_s
    unit_s, unit = _unit(whole_s)
    legend: dict[str, Any] = {}
    for stage in range(schedule.stages):
        legend |= _draw_stage(axes, timeline, stage, unit_s)
    axes.set_yticks(range(schedule.stages), [f"stage {i}" for i in range(schedule.stages)])
    axes.invert_yaxis()
    axes.set_xlim(0, whole_s / unit_s or 1)
    axes.set_xlabel(unit)
    axes.set_title(
        f"{title or schedule.name}: {whole_s / unit_s:.4g} {unit} a step, "
        f"bubble {timeline.bubble:.1%}"
    )
    kinds = [kind for kind in _COLOURS if kind in legend]
    figure.legend(
        [legend[kind] for kind in kinds],
        [_LEGEND.get(kind, kind) for kind in kinds],
        loc="lower center",
        ncols=3,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0.02 + 0.5 / figure.get_figheight(), 1, 1))
    write_figure(figure, path)


def _draw_stage(axes: Any, timeline: Timeline, stage: int, unit_s: float) -> dict[str, Any]:
    """What it draws, by kind."""
    bars: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in timeline.spans:
        if span.stage != stage or span.end_s <= span.start_s:
            continue
        start, width = _bar(span, unit_s)
        bars[_kind(span.action)].append((start, width))
        if span.action.is_compute and width * unit_s > 0.02 * timeline.iteration_s:
            colour = "white" if span.action.kind == "B" else "black"
            place = {"ha": "center", "va": "center", "fontsize": 10, "color": colour}
            axes.text(start + width / 2, stage - 0.12, _round(span.action), **place)
    if ended := [_bar(e, unit_s) for e in timeline.exchanges if e.stage == stage]:
        bars[ONCE] = ended
    drawn: dict[str, Any] = {}
    for kind, chosen in bars.items():
        where = (stage - 0.4, 0.55) if kind in "FBW" else (stage + 0.17, 0.22)
        style = {"facecolors": _COLOURS[kind], "edgecolor": "white", "linewidth": 0.5}
        drawn[kind] = axes.broken_barh(chosen, where, **style)
    return drawn


def _kind(action: Action) -> str:
    return action.kind if action.is_compute else f"S{action.kind[1]}"


def _bar(span: Span | Exchange, unit_s: float) -> tuple[float, float]:
    return span.start_s / unit_s, (span.end_s - span.start_s) / unit_s


def _round(action: Action) -> str:
    """Its micro-batch, and its part of the stage if that has several."""
    return f"{action.micro_batch}.{action.chunk}" if action.chunk else str(action.micro_batch)


def _unit(seconds: float) -> tuple[float, str]:
    return next((u for u in ((1.0, "s"), (1e-3, "ms")) if seconds >= u[0]), (1e-6, "us"))


def _name(what: str, stage: int, thread: int, text: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": stage, "tid": thread, "args": {"name": text}}
