"""A timeline as a picture and as a trace that Perfetto and Chrome open."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from ..._files import write_atomically
from .simulate import Span, Timeline

_COLOURS = {"F": "#4c78a8", "B": "#54a24b", "W": "#b5cf6b"}
_TRANSFER_COLOURS = {"F": "#f2a65a", "B": "#e45756"}
_NAMES = {
    "F": "forward", "B": "backward, inputs", "W": "backward, weights",
    "SF": "send activations", "RF": "receive activations",
    "SB": "send gradients", "RB": "receive gradients",
}  # fmt: skip


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
            "a timeline picture needs matplotlib; install autoddl with its extra 'plots', "
            "or save a trace instead"
        ) from error
    schedule = timeline.schedule
    figure = Figure(figsize=(14, 1 + 0.8 * schedule.stages))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    unit_s, unit = _unit(timeline.makespan_s)
    for stage in range(schedule.stages):
        spans = [s for s in timeline.spans if s.stage == stage and s.end_s > s.start_s]
        for compute in (True, False):
            chosen = [s for s in spans if s.action.is_compute == compute]
            axes.broken_barh(
                [(s.start_s / unit_s, (s.end_s - s.start_s) / unit_s) for s in chosen],
                (stage - 0.4, 0.55) if compute else (stage + 0.17, 0.22),
                facecolors=[_colour(s) for s in chosen],
                edgecolor="white",
                linewidth=0.5,
            )
        for s in spans:
            if s.action.is_compute and s.end_s - s.start_s > 0.012 * timeline.makespan_s:
                middle = (s.start_s + s.end_s) / 2 / unit_s
                text = str(s.action.micro_batch) + (f".{s.action.chunk}" if s.action.chunk else "")
                axes.text(middle, stage - 0.12, text, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(schedule.stages), [f"stage {i}" for i in range(schedule.stages)])
    axes.invert_yaxis()
    axes.set_xlim(0, timeline.makespan_s / unit_s or 1)
    axes.set_xlabel(
        f"{unit}; blue forward, green backward (inputs, light: weights); "
        "below: orange activations, red gradients"
    )
    axes.set_title(
        f"{title or schedule.name}: {timeline.makespan_s / unit_s:.4g} {unit}, "
        f"bubble {timeline.bubble:.1%}"
    )
    figure.tight_layout()
    buffer = BytesIO()
    # no date and no version in the file: the same timeline gives the same bytes
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())


def _colour(span: Span) -> str:
    kind = span.action.kind
    return _COLOURS[kind] if span.action.is_compute else _TRANSFER_COLOURS[kind[1]]


def _unit(seconds: float) -> tuple[float, str]:
    return next((u for u in ((1.0, "s"), (1e-3, "ms")) if seconds >= u[0]), (1e-6, "us"))


def _name(what: str, stage: int, thread: int, text: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": stage, "tid": thread, "args": {"name": text}}
