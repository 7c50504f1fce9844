"""Times the collectives of a calibration on all ranks, each until its median is known.

All ranks have the same record and derive the same decisions from it (`measured`). A point is
visited several times, between visits of others, so that a disturbance does not affect one of them
alone; it is done when its median is known well enough, or has its full number of samples. Rank 0
saves the record after every visit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...sbp.collectives import COLLECTIVES, Step
from ...sbp.layout import local_shape
from ...sbp.placement import B, NdSbp
from ..comm.groups import Groups
from ..comm.redistribute import prepare
from .measured import (
    Limits,
    Progress,
    calls_of,
    next_point,
    progress,
    stop,
    visit_seconds,
    why_not,
)
from .record import Record, Timing
from .schedule import ITEM_BYTES, Point, axes_of, is_active, pair_of
from .stopwatch import Call, Stopwatch

SLOWER = 20  # than estimated may a visit be before a rank counts as lost


def measure(
    record: Record,
    points: Sequence[Point],
    groups: Groups,
    watch: Stopwatch,
    limits: Limits,
    memory_bytes: int,
    spent: Callable[[], float],
    save: Callable[[], None],
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> None:
    """Fill `record`.

    spent:  seconds since the calibration's start, the same on all ranks
    expect: called with the name and the estimated seconds of each visit
    """
    while True:
        spent_s = spent()
        point = next_point(record, points, limits, limits.budget_s - spent_s)
        if point is None:
            stop(record, points, limits, memory_bytes)
            save()
            return
        reason = why_not(record, point, limits, memory_bytes)
        if reason:
            record.skipped[str(point)] = reason
        else:
            show(progress(record, points, limits, point, spent_s))
            expect(str(point), SLOWER * visit_seconds(record, point, limits))
            _visit(record, point, groups, watch, limits)
        save()


def _visit(record: Record, point: Point, groups: Groups, watch: Stopwatch, limits: Limits) -> None:
    call = collective_call(point, groups)
    once = watch.warm_up(call)
    timing = record.timings.get(point)
    if timing is None:
        timing = record.timings[point] = Timing(calls_of(once))
    count = limits.next_count(len(timing.samples))
    timing.samples += watch.seconds(call, timing.calls, count)
    if limits.is_done(timing.samples):
        timing.finish(limits.confidence)


def collective_call(point: Point, groups: Groups) -> Call | None:
    """One call of the point's collective on this rank; None if its group stays idle."""
    mesh, rank = groups.mesh, groups.rank
    if point.kind == "send":
        return _transfer(point, groups)
    if not is_active(mesh, point.shape, rank):
        return None
    axes = axes_of(mesh, point.shape)
    source, target = COLLECTIVES[point.kind].example
    nd = NdSbp((B,) * mesh.num_axes).replace(axes, source)
    shape = tensor_shape(point)
    step = Step.between(source, target, axes)
    run = prepare([step], shape, nd, groups)
    x = groups.backend.from_numpy(np.ones(local_shape(shape, nd, mesh, rank), np.float32))
    return lambda: run(x)


def tensor_shape(point: Point) -> tuple[int, ...]:
    """The global shape of float32 that gives the point's bytes."""
    items = point.bytes // ITEM_BYTES
    devices = point.shape.nodes * point.shape.gpus
    if not COLLECTIVES[point.kind].moves_split:
        return (items,)
    # local: [rows, devices * columns] before, [devices * rows, columns] after
    cells = items // devices
    columns = next(c for c in (64, 16, 4, 1) if cells % c == 0)
    return (devices * (cells // columns), devices * columns)


def _transfer(point: Point, groups: Groups) -> Call | None:
    pair = pair_of(groups.mesh, point.shape, groups.rank)
    if pair is None:
        return None
    sender, receiver = pair
    backend, items = groups.backend, point.bytes // ITEM_BYTES
    if groups.rank == sender:
        x = backend.from_numpy(np.ones(items, np.float32))
        return lambda: backend.send(x, receiver)
    return lambda: backend.receive(sender, items, "float32")
