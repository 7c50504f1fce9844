"""Times the collectives of a calibration on all ranks, each until its median is known.

All ranks have the same record and derive the same decisions from it. The points are visited in
turns, several times each, so that a disturbance does not affect one of them alone; a point is done
when its median is known well enough, or has its full number of samples. Rank 0 saves the record
after every visit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ...sbp.collectives import COLLECTIVES, Step
from ...sbp.layout import local_shape
from ...sbp.placement import B, NdSbp
from ..comm.groups import Groups
from ..comm.redistribute import prepare
from .measured import Limits, Progress, estimate, is_over, progress, stop, why_not
from .record import Record, Timing
from .schedule import ITEM_BYTES, Point, axes_of, is_active, pair_of
from .stopwatch import Call, Stopwatch

# A training step issues its collectives one after the other and does not wait for each: one call
# that all ranks start and end together takes several times as long where processes share cores.
SAMPLE_SECONDS = 0.1
MOST_CALLS = 16  # of a small message, whose calls together do not reach SAMPLE_SECONDS


def measure(
    record: Record,
    points: Sequence[Point],
    groups: Groups,
    watch: Stopwatch,
    limits: Limits,
    memory_bytes: int,
    save: Callable[[], None],
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> None:
    """Fill `record`. `expect(what, seconds)` is called before each visit with an estimate."""
    started = time.monotonic()
    while True:
        pending = [p for p in points if not is_over(record, p)]
        if not pending:
            return
        for point in pending:
            reason = why_not(record, point, limits, memory_bytes)
            if watch.agreed(time.monotonic() - started) > limits.budget_s:
                stop(record, pending, limits)
                save()
                return
            if reason:
                record.skipped[str(point)] = reason
            else:
                spent_s = time.monotonic() - started
                show(progress(record, points, limits, point, spent_s))
                expect(str(point), 10 * estimate(record, point) * MOST_CALLS)
                _visit(record, point, groups, watch, limits)
            save()


def _visit(record: Record, point: Point, groups: Groups, watch: Stopwatch, limits: Limits) -> None:
    call = collective_call(point, groups)
    once = watch.warm_up(call)
    timing = record.timings.get(point)
    if timing is None:
        calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / max(once, 1e-6))))
        timing = record.timings[point] = Timing(calls)
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
