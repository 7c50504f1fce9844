"""What is drawn of a plan beside its sections, as data for JSON.

    blocks    which part of each tensor of a layer's heavy operator each device holds
    course    what a device holds at each operator of a step
    timeline  when the stages compute and exchange

All of it follows from the plan's placements and figures; a place is a fraction of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ...cost.tape import Moment
from ...graph.graph import Op
from ...sbp.layout import TensorSpec, local_slices
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..figures import SHARED, figures
from ..format import format_bytes, format_seconds
from ..plan import Plan
from ..schedule.simulate import Span, Timeline
from ..stage import PlannedLayer, StagePlan
from ..stage_figures import stage_figures
from .notation import placement

MOST_DEVICES = 64  # that are drawn of a stage
MOST_MOMENTS = 400  # points of a curve: more than it has pixels
_MOST_TICKS = 5
_IN_SIGHT = 3  # a limit so many times above a curve is drawn with it
MOST_SPANS = 6000  # bars of a timeline that a browser still draws at once
_NAMED_BY_WEIGHT = ("W", "b")


def drawing(plan: Plan) -> dict[str, Any]:
    """The whole plan's; parts that are equal to an earlier one are left out."""
    several, layouts = len(plan.stages) > 1, _Layouts()
    word = "stage" if plan.chunks == 1 else "part"
    parts: list[dict[str, Any]] = []
    for number, stage in enumerate(plan.stages):
        if figures(plan).same_as[number] != number:
            continue
        title = f"{word} {number}" if several else ""
        layers = [_layer(stage, layer, layouts) for layer in stage.layers]
        place = {"nodes": stage.mesh.nodes, "gpus": stage.mesh.gpus_per_node}
        place |= {"first_node": stage.place.first_node, "first_gpu": stage.place.first_gpu}
        parts.append({"title": title, **place, "layers": layers, "course": _course(stage)})
    overlaps = any(stage.buckets or stage.turns for stage in plan.stages)
    return {
        "parts": parts,
        "layouts": layouts.found,
        "most_devices": MOST_DEVICES,
        "timeline": _timeline(plan) if overlaps or several else None,
    }


# ---- blocks of tensors


class _Layouts:
    """How shapes are placed on meshes, each once."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._known: dict[tuple[tuple[int, ...], NdSbp, Mesh, tuple[int, int]], int] = {}

    def number(self, spec: TensorSpec, nd: NdSbp, mesh: Mesh, dims: tuple[int, int]) -> int:
        key = spec.shape, nd, mesh, dims
        if key not in self._known:
            self._known[key] = len(self.found)
            self.found.append(_layout(*key))
        return self._known[key]


def _layout(shape: tuple[int, ...], nd: NdSbp, mesh: Mesh, dims: tuple[int, int]) -> dict[str, Any]:
    """Which block of a tensor each device holds, drawn along two of its dims.

    copies:   devices that hold the same; summands: whose blocks have to be added up
    blocks:   per device [top, bottom, left, right], the slices, and a number that copies share
    """
    copied = [axis for axis, placement in enumerate(nd) if placement.is_broadcast]
    added = [axis for axis, placement in enumerate(nd) if placement.is_partial]
    blocks = []
    for rank in range(min(mesh.size, MOST_DEVICES)):
        slices = local_slices(shape, nd, mesh, rank)
        edges = [_edges(shape, slices, dim) for dim in dims]
        text = ", ".join(
            ":" if part == slice(0, size) else f"{part.start}:{part.stop}"
            for part, size in zip(slices, shape, strict=True)
        )
        coords = [0 if axis in copied else at for axis, at in enumerate(mesh.coords(rank))]
        blocks.append([*edges[0], *edges[1], f"[{text}]", mesh.rank(coords)])
    return {
        "copies": mesh.extent(copied), "summands": mesh.extent(added), "blocks": blocks,
        "rows": _size(shape, dims[0]), "columns": _size(shape, dims[1]),
    }  # fmt: skip


def _edges(shape: Sequence[int], slices: Sequence[slice], dim: int) -> tuple[float, float]:
    size = _size(shape, dim)
    if not 0 <= dim < len(shape) or size == 0:
        return 0.0, 1.0
    return round(slices[dim].start / size, 5), round(slices[dim].stop / size, 5)


def _size(shape: Sequence[int], dim: int) -> int:
    return shape[dim] if 0 <= dim < len(shape) else 1


def _drawn_dims(op: Op, shape: Sequence[int], nd: NdSbp) -> tuple[int, int]:
    """The two dims along which a tensor is drawn: those that are split, then first and last.

    Of a convolution's tensors the first two; -1 stands for a dim that a vector lacks.
    """
    if len(shape) < 2:
        return (-1, 0) if len(shape) else (-1, -1)
    others = (0, 1) if op.kind.startswith("conv") else (0, len(shape) - 1)
    chosen = list(dict.fromkeys((*nd.split_dims(), *others, *range(len(shape)))))[:2]
    first, second = sorted(chosen)
    return first, second


def _layer(stage: StagePlan, layer: PlannedLayer, layouts: _Layouts) -> dict[str, Any]:
    members = [op for op in stage.graph.ops if op.name in set(layer.ops)]
    heavy = [op for op in members if op.kind == layer.op]
    (op, *_) = heavy or [op for op in members if op.inputs] or members
    placed, tensors = stage.ops[op.name], []
    for role, name, nd in _roles(stage, op, placed.ins, placed.outs):
        tensor = stage.graph.tensors[name]
        dims = _drawn_dims(op, tensor.spec.shape, nd)
        tensors.append(
            {
                "role": role,
                "name": name.removesuffix(".fork"),
                "shape": str(tensor.spec),
                "placement": placement(nd, stage.mesh, tensor.batch_dims, "words"),
                "layout": layouts.number(tensor.spec, nd, stage.mesh, dims),
            }
        )
    return {"name": layer.name, "op": op.name, "kind": op.kind, "tensors": tensors}


def _roles(
    stage: StagePlan, op: Op, ins: Sequence[NdSbp], outs: Sequence[NdSbp]
) -> Iterator[tuple[str, str, NdSbp]]:
    """X for what is computed from, W and b for parameters, Y for what is computed."""
    given, weights = 0, 0
    for name, nd in zip(op.inputs, ins, strict=True):
        if _is_parameter(stage, name):
            yield _NAMED_BY_WEIGHT[min(weights, 1)], name, nd
            weights += 1
        else:
            given += 1
            yield "X" if given == 1 else f"X{given}", name, nd
    for number, (name, nd) in enumerate(zip(op.outputs, outs, strict=True), start=1):
        yield "Y" if number == 1 else f"Y{number}", name, nd


def _is_parameter(stage: StagePlan, tensor: str) -> bool:
    """Whether it is one, or one in another precision or by another name."""
    producer = stage.graph.producers[tensor]
    while producer.kind in ("cast", "fork"):
        producer = stage.graph.producers[producer.inputs[0]]
    return producer.kind == "param"


# ---- memory over a step


def _course(stage: StagePlan) -> dict[str, Any]:
    """The fullest of every few moments, so that there are at most MOST_MOMENTS."""
    every = stage_figures(stage).memory_course
    width = math.ceil(len(every) / MOST_MOMENTS)
    chosen = [_fullest(every[n : n + width]) for n in range(0, len(every), width)]
    fullest, limit = _fullest(every), stage_figures(stage).limit_bytes
    causes = sorted({cause for moment in chosen for cause in moment.by_cause}, key=_held_longest)
    top = max(fullest.bytes * 1.05, 1.0)
    if fullest.bytes < limit <= _IN_SIGHT * fullest.bytes:
        top = 1.05 * limit
    beyond = ", far above this picture" if limit > top else ""
    needed = stage_figures(stage).required_bytes()
    more = f"the plan needs {format_bytes(needed)}, as a compiled step holds more; "
    return {
        "text": f"at most {format_bytes(fullest.bytes)}, at {fullest.name}; "
        f"{more if needed > fullest.bytes else ''}the limit is "
        f"{format_bytes(limit)}{beyond}",
        "limit_bytes": limit if math.isfinite(limit) else None,
        "top_bytes": top,
        "ticks": [[tick, format_bytes(tick)] for tick in _ticks(top)],
        "turn": sum(not moment.is_backward for moment in chosen),
        "fullest": chosen.index(fullest),
        "causes": causes,
        "moments": [moment.name for moment in chosen],
        "bytes": [[moment.by_cause.get(cause, 0) for moment in chosen] for cause in causes],
        "texts": [format_bytes(moment.bytes) for moment in chosen],
    }


def _fullest(moments: Sequence[Moment]) -> Moment:
    return max(moments, key=lambda moment: moment.bytes)


_ORDER = ("parameters", "optimizer", "average", "inputs", "redistribution", "in flight",
          "gradients", "activations")  # fmt: skip


def _held_longest(cause: str) -> tuple[int, str]:
    """What is there all the time comes first: it is drawn at the bottom."""
    return (_ORDER.index(cause) if cause in _ORDER else len(_ORDER)), cause


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to `top`, five or fewer."""
    if top <= 0:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(top))
    step = next(s for s in (0.2 * unit, 0.25 * unit, 0.5 * unit, unit, 2 * unit, 5 * unit)
                if top / s <= _MOST_TICKS)  # fmt: skip
    return [n * step for n in range(math.floor(top / step) + 1)]


# ---- the timeline


_COMPUTES = {"F": "compute", "B": "B", "W": "W"}


def _timeline(plan: Plan) -> dict[str, Any]:
    """Bars [stage, whether it travels, kind, start, end, micro-batch, text], in seconds."""
    known = figures(plan)
    timeline, bars = known.timeline, []
    weights = {
        (span.stage, span.action.chunk, span.action.micro_batch, span.start_s): span.end_s
        for span in timeline.spans
        if span.action.kind == "W"
    }
    for span in timeline.spans:
        action = span.action
        if span.end_s <= span.start_s or (timeline.schedule.joint and action.kind == "W"):
            continue
        end_s = span.end_s
        if timeline.schedule.joint and action.kind == "B":  # both halves run as one
            end_s = weights[span.stage, action.chunk, action.micro_batch, end_s]
        kind = _COMPUTES[action.kind] if action.is_compute else _link(plan, span)
        travels, number = not action.is_compute, action.micro_batch
        text = f"{_text(plan, span)}, {format_seconds(end_s - span.start_s)}"
        bars.append([span.stage, travels, kind, span.start_s, end_s, number, text])
    for exchange in timeline.exchanges:
        where = plan.cluster if exchange.what == SHARED else plan.stages[exchange.part].mesh
        kind = "inter" if where.nodes > 1 else "intra"
        seconds = exchange.end_s - exchange.start_s
        text = f"{exchange.what}, once a step, {format_seconds(seconds)}"
        bars.append([exchange.stage, True, kind, exchange.start_s, exchange.end_s, None, text])
    return {
        "stages": timeline.schedule.stages,
        "seconds": timeline.iteration_s,
        "text": f"{format_seconds(timeline.iteration_s)} a step: the last pass ends after "
        f"{format_seconds(timeline.makespan_s)}; {_once(timeline)}",
        "ticks": [[tick, format_seconds(tick)] for tick in _ticks(timeline.iteration_s)],
        "bars": bars if len(bars) <= MOST_SPANS else None,
    }


def _once(timeline: Timeline) -> str:
    """When stages exchange what they exchange once a step."""
    last = [0.0] * timeline.schedule.stages
    for span in timeline.spans:
        last[span.stage] = max(last[span.stage], span.end_s)
    beside = any(own.start_s < last[own.stage] for own in timeline.exchanges)
    when = "begins beside its last pass" if beside else "follows"
    return f"what {'a' if beside else 'each'} stage exchanges once a step {when}"


def _text(plan: Plan, span: Span) -> str:
    action = span.action
    names = {"F": "forward", "B": "backward", "W": "backward, weights"}
    moved = {"F": "activations", "B": "gradients"}
    what = names[action.kind] if action.is_compute else moved[action.kind[1]]
    chunk = f" of part {action.chunk} of the stage" if plan.chunks > 1 else ""
    return f"{what}{chunk}, micro-batch {action.micro_batch}"


def _link(plan: Plan, span: Span) -> str:
    """Over which link a tensor travels between two stages."""
    ends = span.stage, span.action.peer
    hosts = [
        set(range(place.first_node, place.first_node + place.nodes))
        for place in (plan.stages[stage].place for stage in ends)
    ]
    return "intra" if hosts[0] & hosts[1] else "inter"
