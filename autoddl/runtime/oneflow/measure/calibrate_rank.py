"""One rank of `autoddl calibrate`: receives the record, measures the device and the collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ....graph.graph import Graph
from ....sbp.mesh import Mesh
from ...comm.groups import Groups
from ...jobs.guard import rank
from ...jobs.session import share_text
from ...measure.measured import Limits, Progress
from ...measure.record import Record
from ...measure.schedule import Point
from ..backend import OneFlow
from .measure import measure
from .measure_device import measure_device, memory_bytes
from .measure_operators import measure_operators
from .timing import Stopwatch

# Time limits after which a silent rank counts as lost; they are generous, to end a hung
# job but never a slow one.
DEVICE_SECONDS = 120.0
SLACK_SECONDS = 60.0  # beyond the time that a visit should take


def run(
    mesh: Mesh,
    points: Sequence[Point],
    start: Callable[[], Record],
    path: Path,
    limits: Limits,
    device_kind: str,
    with_device: bool,
    graph: Graph | None,
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> Record:
    """Go on from `start()` of rank 0, which saves the record to `path`; the whole record.

    graph: of a model whose operators are timed, too
    """
    expect("the start of OneFlow on all ranks", DEVICE_SECONDS)
    backend = OneFlow(device_kind)
    groups = Groups(mesh, rank(), backend)
    watch = Stopwatch(groups)
    record = Record.loads(share_text(lambda: start().dumps(), backend))

    def save() -> None:
        if rank() == 0:
            record.save(path)

    if with_device and record.device is None:
        expect("the measurement of the device", DEVICE_SECONDS)
        record.device = measure_device(
            watch,
            device_kind,
            mesh.gpus_per_node,
            tell=lambda what: show(Progress(0, len(points), 0.0, limits.budget_s, what)),
        )
        save()
    share = memory_bytes(device_kind, mesh.gpus_per_node)
    measure(
        record,
        points,
        groups,
        watch,
        limits,
        int(watch.agreed(share)),
        save,
        show,
        lambda what, seconds: expect(what, SLACK_SECONDS + seconds),
    )
    if graph is not None:

        def next_one(now: Progress) -> None:
            show(now)
            expect(f"the measurement of {now.what}", DEVICE_SECONDS)

        agreed = int(watch.agreed(share))
        measure_operators(record, graph, groups, watch, agreed, save, next_one)
    save()
    watch.meet()
    return record
