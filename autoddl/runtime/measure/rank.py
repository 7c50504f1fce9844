"""One rank of `autoddl calibrate`: receives the record, measures the device and the collectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...graph.graph import Graph
from ...sbp.mesh import Mesh
from ..backend import Backend
from ..comm.groups import Groups
from ..jobs.agreement import share_text
from .beside import measure_beside
from .collectives import measure
from .device import measure_device, memory_bytes
from .measured import Limits, Progress
from .operators import measure_operators
from .record import Record
from .schedule import Point
from .stopwatch import Stopwatch

# Time limits after which a silent rank counts as lost; they are generous, to end a hung
# job but never a slow one.
DEVICE_SECONDS = 120.0
SLACK_SECONDS = 60.0  # beyond the time that a visit should take
LONGEST_PRODUCT_S = 0.5  # of two matrices; larger ones would tell no more
PRODUCTS = 360  # of the longest: all products and copies together take about a tenth of the time


def run(
    backend: Backend,
    mesh: Mesh,
    points: Sequence[Point],
    start: Callable[[], Record],
    path: Path,
    limits: Limits,
    with_device: bool,
    graph: Graph | None,
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> Record:
    """Go on from `start()` of rank 0, which saves the record to `path`; the whole record.

    graph: of a model whose operators are timed, too
    """
    expect(f"the start of {backend.facts.framework} on all ranks", DEVICE_SECONDS)
    groups = Groups(mesh, backend.rank, backend)
    watch = Stopwatch(groups)
    record = Record.loads(share_text(lambda: start().dumps(), backend))

    def save() -> None:
        if backend.rank == 0:
            record.save(path)

    started = time.monotonic()

    def spent() -> float:
        return watch.agreed(time.monotonic() - started)

    if with_device:
        _measure_device(record, groups, watch, limits, spent, save, show, expect)
    share = int(watch.agreed(memory_bytes(backend.facts.device, mesh.gpus_per_node)))
    measure(
        record,
        points,
        groups,
        watch,
        limits,
        share,
        spent,
        save,
        show,
        lambda what, seconds: expect(what, SLACK_SECONDS + seconds),
    )
    if graph is not None:

        def next_one(now: Progress) -> None:
            show(now)
            expect(f"the measurement of {now.what}", DEVICE_SECONDS)

        measure_operators(record, graph, groups, watch, share, limits, save, next_one)
    save()
    watch.meet()
    return record


def _measure_device(
    record: Record,
    groups: Groups,
    watch: Stopwatch,
    limits: Limits,
    spent: Callable[[], float],
    save: Callable[[], None],
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> None:
    """Of a device what the record does not have yet."""

    def tell(what: str) -> None:
        spent_s = spent()
        show(Progress("", 0, 0, spent_s, max(0.0, limits.budget_s - spent_s), what))

    if record.device is None:
        expect("the measurement of the device", DEVICE_SECONDS)
        longest_s = min(LONGEST_PRODUCT_S, limits.budget_s / PRODUCTS)
        record.device = measure_device(watch, groups, longest_s, tell=tell)
        save()
    if not record.beside:
        expect("computation beside collectives", DEVICE_SECONDS)
        tell("computation beside collectives")
        record.beside = measure_beside(watch, groups)
        save()
