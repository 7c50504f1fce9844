"""All that is shown of a plan, of any number of stages, as sections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...cluster.spec import Cluster
from ...graph import batch_norm
from ...graph.rows import find_rows
from ...plans.figures import figures
from ..format import format_bytes
from ..plan import Plan
from ..reshard.plan import ReshardPlan
from ..schedule.schedule import Costs
from ..schedule.simulate import simulate
from ..stage import PlannedBaseline, StagePlan
from .changes import Change, changes
from .layers import layers_table
from .machine import estimates, estimates_notes, machine_sections
from .notation import placement
from .sections import Column, Figure, Figures, Notation, Part, Report, Row, Section, Table
from .stage_sections import needed_alone, stage_sections
from .why import why

OURS = "this plan"
_MASTERS = "with float32 master weights in the optimizer"
_PRECISION = {
    "float16": f"float16 {_MASTERS}, and loss scaling",
    "bfloat16": f"bfloat16 {_MASTERS}",
}


def report(plan: Plan, anew: Sequence[Change] = (), *, brief: bool = False) -> Report:
    """The whole plan: its cost, where time, bytes and memory go, each layer's choice, how good it

    is, and what would change it.

    anew:  what was planned anew for a change
    brief: only what the short account needs, which takes a tenth of the time for a large model
    """
    several = len(plan.stages) > 1
    word = _part_word(plan)
    parts = tuple(
        Part(
            f"{word} {number}",
            needed_alone(stage) if brief and first != number else stage_sections(stage, brief),
            f"{word} {first}" if first != number else "",
        )
        for number, (stage, first) in enumerate(
            zip(plan.stages, figures(plan).same_as, strict=True)
        )
    )
    needed = [_needed_bytes(part) for part in parts]
    waiting = _pipeline(plan) if several else ()
    sections = _heading(plan, needed), why(plan), cluster_figures(plan.cluster), *waiting
    if brief and not several:
        return Report(*titles(plan), sections, parts)
    sections = *sections, _stages(plan, needed), _transfers(plan)
    if brief:
        return Report(*titles(plan), sections, parts, (), "stages")
    closing = (changes(plan, anew), _schemes(plan), *machine_sections(plan.cluster))
    return Report(*titles(plan), sections, parts, closing, "stages")


def titles(plan: Plan) -> tuple[str, str]:
    """What is planned, and how."""
    rounds = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    if plan.stages[0].turns:
        rounds += f", {plan.stages[0].in_flight} in flight"
    words = [f"batch {plan.batch}{rounds}", plan.optimizer]
    if plan.ema:
        words.append("average of the parameters")
    if len(plan.stages) > 1:
        chunks = "" if plan.chunks == 1 else f" of {plan.chunks} parts"
        words += [f"{plan.num_stages} stages{chunks}", plan.schedule_name]
        if plan.delay is not None:
            words.append(f"weight gradients {plan.delay} late")
    words += [f"hosts' shares {_shares(stage)}" for stage in plan.stages if stage.shares]
    if plan.precision in _PRECISION:
        words.append(_PRECISION[plan.precision])
    return f"{plan.graph.name} on {plan.cluster}", ", ".join(words)


def _shares(stage: StagePlan) -> str:
    """`V100 9, P100 5 5 5`: of each run of hosts, by the names of the groups if there are any."""
    cluster, shares = stage.cluster, stage.shares
    if not cluster.groups:
        return ":".join(map(str, shares))
    per_run = len(shares) // len(cluster.runs)
    of_group: dict[str, list[str]] = {}
    for number, share in enumerate(shares):
        name = cluster.groups[cluster.runs[number // per_run]].name
        of_group.setdefault(name, []).append(str(share))
    return ", ".join(f"{name} {' '.join(own)}" for name, own in of_group.items())


def layer_report(plan: Plan, name: str) -> Report:
    """One layer, step by step. ValueError if no layer has that name."""
    found = [stage for stage in plan.stages if any(own.name == name for own in stage.layers)]
    if not found:
        names = ", ".join(layer.name for layer in plan.layers[:6])
        raise ValueError(f"the plan has no layer {name!r}; its layers are {names}, ...")
    table = layers_table(found[0], [name])
    told = dataclasses.replace(table, notes=(*table.notes, *estimates_notes(plan.cluster)))
    return Report(name, f"in {' '.join(titles(plan))}", (told,))


def _part_word(plan: Plan) -> str:
    return "stage" if plan.chunks == 1 else "part"


def _needed_bytes(part: Part) -> float:
    """Of a device, which the memory limit is held against."""
    (memory,) = (s for s in part.sections if isinstance(s, Table) and s.key == "memory")
    return memory.sums["bytes"]


def _heading(plan: Plan, needed_bytes: Sequence[float]) -> Figures:
    """Of the plan as a whole, and what keeps its batch whole.

    needed_bytes: of each part; those of one stage share its devices
    """
    of_stages = (sum(needed_bytes[v] for v in plan.parts_of(n)) for n in range(plan.num_stages))
    single = len(plan.stages) == 1
    values = (
        Figure("model", "", plan.graph.name),
        Figure("seed", "", plan.seed),
        Figure("batch", "", plan.batch),
        Figure("micro_batches", "", plan.micro_batches),
        Figure("in_flight", "", max(plan.in_flight)),
        Figure("precision", "", plan.precision),
        Figure("batch_norm", "", plan.batch_norm),
        Figure("optimizer", "", plan.optimizer),
        Figure("ema", "", plan.ema),
        Figure("shares", "", ":".join(map(str, plan.stages[0].shares)) or None),
        Figure("schedule", "", plan.schedule_name),
        Figure("delay", "", plan.delay),
        Figure("chunks", "", plan.chunks),
        Figure("recomputed_blocks", "", len(plan.recomputed)),
        Figure("iteration_s", "" if single else "a step", figures(plan).iteration_s, "seconds"),
        Figure("memory_bytes", "needs", max(of_stages), "bytes"),
        Figure("memory_limit_bytes", "of at most", figures(plan).limit_bytes, "bytes"),
    )  # fmt: skip
    notes = (*_rows_notes(plan), *estimates_notes(plan.cluster))
    return Figures("", "A device", values, brief=True, notes=notes)


def cluster_figures(cluster: Cluster) -> Figures:
    """In the title for people."""
    names = ("name", "nodes", "gpus_per_node")
    values = [Figure(n, "", getattr(cluster, n)) for n in names]
    return Figures("cluster", "", (*values, Figure("estimates", "", tuple(estimates(cluster)))))


def _rows_notes(plan: Plan) -> tuple[str, ...]:
    """What keeps the batch whole, and what BatchNorm takes its statistics of."""
    graph = plan.graph
    notes = [text] if (text := batch_norm.text(graph)) else []
    is_whole = plan.micro_batches == 1 and not graph.is_stage
    meeting = find_rows(graph).meeting if is_whole else None
    if meeting is not None and not batch_norm.is_training_norm(meeting):
        notes.append(
            f"rows of the batch meet in {meeting.name} ({meeting.kind}), so it is trained whole"
        )
    return tuple(notes)


def _pipeline(plan: Plan) -> tuple[Section, ...]:
    """How long the stages wait for each other, and the parameters that several of them hold."""
    known = figures(plan)
    costs, word = known.pass_costs, _part_word(plan)
    no_transfers = Costs(costs.forward, costs.backward, costs.weight, {}, {})
    values = (
        Figure("bubble", "bubble", known.timeline.bubble, "share"),
        Figure("bubble_without_transfers", "with transfers in no time",
               simulate(known.schedule, no_transfers).bubble, "share"),
    )  # fmt: skip
    notes = tuple(
        f"parameter {name} is held by {word}s {', '.join(map(str, stages))}; their gradients are "
        "added up once a step"
        for name, stages in known.travel.shared_params.items()
    )
    return (Figures("", "Waiting", values, brief=True, notes=notes),)


def _stages(plan: Plan, needed_bytes: Sequence[float]) -> Table:
    """Where the stages are and what their passes take."""
    known = figures(plan)
    word = _part_word(plan)
    rows: list[Row] = [
        {
            "stage": number,
            "layers": f"{stage.first}-{stage.last - 1}",
            "first_layer": stage.first,
            "last_layer": stage.last - 1,
            "place": str(stage.place),
            "forward_s": known.prices[number].forward_s,
            "backward_s": known.prices[number].backward_s,
            "once_s": known.prices[number].once_s,
            "in_flight": known.schedule.stash[number % plan.num_stages],
            "memory_bytes": needed_bytes[number],
        }
        for number, stage in enumerate(plan.stages)
    ]
    columns = (
        Column("stage", word, "count"),
        Column("layers", "layers"),
        Column("place", "place"),
        Column("forward_s", "forward", "seconds"),
        Column("backward_s", "backward", "seconds"),
        Column("once_s", "once", "seconds"),
        Column("in_flight", "in flight", "count"),
        Column("memory_bytes", "memory", "bytes"),
    )
    return Table("stages", f"{word.capitalize()}s", columns, tuple(rows), brief=True)


def _transfers(plan: Plan) -> Table:
    known = figures(plan)
    rows: list[Row] = [
        {
            "tensor": link.tensor,
            "source": link.source,
            "target": link.target,
            "long_skip": link.target > link.source + 1,
            "way": f"{link.source} -> {link.target}"
            + (" (long skip)" if link.target > link.source + 1 else ""),
            "path": _path(plan, link.tensor, forward, "words"),
            "path_sbp": _path(plan, link.tensor, forward, "sbp"),
            "bytes": forward.spec.bytes,
            "strategy": forward.strategy,
            "forward_s": forward.seconds,
            "forward_bound_s": forward.bound_s,
            "backward_s": backward.seconds if backward else 0.0,
        }
        for link, (forward, backward) in known.travel.reshards.items()
    ]
    columns = (
        Column("tensor", "tensor"),
        Column("way", f"{_part_word(plan)}s"),
        Column("path", "placements", notation="words"),
        Column("path_sbp", "placements", notation="sbp"),
        Column("bytes", "bytes", "bytes"),
        Column("strategy", "by"),
        Column("forward_s", "forward", "seconds"),
        Column("forward_bound_s", "at least", "seconds"),
        Column("backward_s", "backward", "seconds"),
    )
    title = f"Between {_part_word(plan)}s, each micro-batch" if rows else ""
    return Table("transfers", title, columns, tuple(rows))


def _path(plan: Plan, tensor: str, way: ReshardPlan, notation: Notation) -> str:
    """From which placement to which a tensor goes."""
    dims = plan.graph.tensors[tensor].batch_dims
    ends = (placement(end.nd, end.mesh, dims, notation) for end in (way.source, way.target))
    return " -> ".join(ends)


def _schemes(plan: Plan) -> Table:
    """The plan and the known schemes, the fastest first, and then those that cannot run."""
    known = figures(plan)
    ours = PlannedBaseline(
        OURS,
        "",
        plan.micro_batches,
        max(known.memory_bytes),
        known.iteration_s,
        known.cost.exposed_s,
    )
    able = sorted((ours, *filter(_fits, plan.baselines)), key=lambda b: b.iteration_s or 0.0)
    unable = [baseline for baseline in plan.baselines if not baseline.fits]
    rows: list[Row] = [
        {
            "name": scheme.name,
            "topology": scheme.topology,
            "fits": scheme.fits,
            "micro_batches": scheme.micro_batches,
            "iteration_s": scheme.iteration_s,
            "times": _times(scheme.iteration_s, known.iteration_s),
            "communication_s": scheme.communication_s,
            "memory_bytes": scheme.memory_bytes,
            "why": unfit_text(scheme),
        }
        for scheme in (*able, *unable)
    ]
    columns = (
        Column("name", "scheme"),
        Column("topology", "split"),
        Column("micro_batches", "micro-batches", "count"),
        Column("iteration_s", "a step", "seconds"),
        Column("times", "times as long", "times"),
        Column("communication_s", "exposed comm.", "seconds"),
        Column("why", "why not"),
    )
    title = "Beside the known schemes, each as it is fastest" if plan.baselines else ""
    return Table("schemes", title, columns, tuple(rows))


def _fits(baseline: PlannedBaseline) -> bool:
    return baseline.fits


def _times(seconds: float | None, ours: float) -> float | None:
    if seconds is None:
        return None
    return seconds / ours if ours else 1.0


def unfit_text(baseline: PlannedBaseline) -> str:
    """Why a known scheme is out of the question, which fits or not; "" if it is not."""
    if baseline.fits:
        return baseline.breaks and f"breaks {baseline.breaks}"
    if baseline.memory_bytes is None:
        return "cannot split every operator"
    return f"does not fit, it needs {format_bytes(baseline.memory_bytes)} a device"
