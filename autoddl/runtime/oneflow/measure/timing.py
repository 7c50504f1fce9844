"""Times collectives exactly as the executor runs them.

A sample is `calls` back-to-back calls, as in a training step, and the wait until OneFlow has
completed them, divided by `calls`. All ranks start it together and the slowest counts. Every rank
receives every rank's time, so that all decide alike when to stop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import oneflow as flow
import oneflow._oneflow_internal as internal

from ....sbp.collectives import COLLECTIVES, Step
from ....sbp.layout import local_shape
from ....sbp.placement import B, NdSbp
from ...comm.groups import Groups
from ...comm.redistribute import prepare
from ...measure.schedule import ITEM_BYTES, Point, axes_of, is_active, pair_of

Call = Callable[[], object]

WARM_UP_CALLS = 2  # the first call allocates and connects; the second is the first estimate


def wait() -> None:
    """Wait until everything that this rank has issued is complete."""
    internal.eager.Sync()


class Stopwatch:
    """Times what all ranks of `groups` do together."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.backend = groups.backend
        self._world = groups.along(range(groups.mesh.num_axes))
        self._token = flow.zeros(1, device=groups.backend.facts.device)

    def meet(self) -> None:
        """Barrier: wait until all ranks are here."""
        self._world.all_reduce(self._token).numpy()

    def seconds(self, call: Call | None, calls: int, samples: int) -> list[float]:
        """`samples` samples of `call` (None on an idle rank), each of the slowest rank."""
        mine = np.zeros(samples)
        for index in range(samples):
            self.meet()
            if call is not None:
                started = time.perf_counter()
                for _ in range(calls):
                    call()
                wait()
                mine[index] = (time.perf_counter() - started) / calls
        return self.gather(mine).max(axis=0).tolist()

    def warm_up(self, call: Call | None) -> float:
        """Calls that are not counted; returns the seconds of the last one on the slowest rank."""
        return self.seconds(call, 1, WARM_UP_CALLS)[-1]

    def gather(self, values: np.ndarray) -> np.ndarray:
        """[n] float64 on each rank -> [ranks, n], the same on all."""
        mine = flow.tensor(
            np.ascontiguousarray(values, dtype=np.float64), device=self._groups.backend.facts.device
        )
        return self._world.all_gather(mine).numpy().reshape(self._world.size, -1)

    def agreed(self, value: float) -> float:
        """Rank 0's value, on all ranks."""
        return float(self.gather(np.array([value]))[0, 0])

    def median(self, call: Call, calls: int, samples: int) -> float:
        """The median of samples of work that each rank does alone, all at the same time."""
        return statistics.median(self.seconds(call, calls, samples))


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
    x = flow.ones(*local_shape(shape, nd, mesh, rank), device=groups.backend.facts.device)
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
    items = point.bytes // ITEM_BYTES
    if groups.rank == sender:
        x = flow.ones(items, device=groups.backend.facts.device)
        return lambda: flow.comm.send(x, receiver, send_meta=False)
    device = flow.device(groups.backend.facts.device)
    return lambda: flow.comm.recv(sender, shape=(items,), dtype=flow.float32, device=device)
