"""Transfers between pipeline stages: one rank's part of a resharding plan.

The plan's moves are one order of point-to-point copies; each rank issues those that it takes part
in, in that order, so that two ranks meet at the same one. They may run beside computation; all
communication of a rank stays one queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...plans.reshard.plan import ReshardPlan
from ...plans.reshard.strategies import End, Move, UnitTask
from ...sbp.layout import local_slices
from ...sbp.mesh import Device
from ..backend import Backend, Tensor
from ..emulate.arrival import Arrival


class Resharding:
    """Carries out `plan` on the rank of `device`; `gpus_per_node` numbers the job's ranks.

    beside: messages run beside computation
    signal: of each slice only one element travels, to see what the transfers cost
    """

    def __init__(
        self,
        plan: ReshardPlan,
        device: Device,
        gpus_per_node: int,
        backend: Backend,
        *,
        beside: bool = False,
        signal: bool = False,
    ) -> None:
        self._plan = plan
        self._device = device
        self._gpus = gpus_per_node
        self._backend = backend
        self._beside = beside
        self._signal = signal
        self._dtype = plan.spec.dtype
        self._carrier = backend.facts.sent_as.get(plan.spec.dtype, plan.spec.dtype)
        self._moves = [
            (task, move)
            for task, move in plan.moves()
            if device in (move.sender, move.receiver) and not (signal and move.start)
        ]

    def send(self, shard: Tensor) -> None:
        """Issue this rank's moves as a rank of the source, whose local part is `shard`."""
        box = _box(self._plan, self._plan.source, self._device)
        pieces: dict[int, Tensor] = {}
        for task, move in self._moves:
            assert move.sender == self._device
            if id(task) not in pieces:
                part = self._backend.cast(self._narrowed(shard, task, box), self._carrier)
                pieces[id(task)] = part.reshape(-1)
            self._send(pieces[id(task)], move)

    def receive(self, arrivals: list[Arrival] | None = None) -> Tensor:
        """Issue this rank's moves as a rank of the target; gives its local part.

        arrivals: if given, gets those of the messages, whose memory is NumPy's then
        """
        box = _box(self._plan, self._plan.target, self._device)
        parts: dict[int, list[tuple[int, int, Tensor]]] = {}
        for task, move in self._moves:
            held = parts.setdefault(id(task), [])
            if move.receiver == self._device:
                size = 1 if self._signal else move.stop - move.start
                got = self._receive(size, self._rank(move.sender), arrivals)
                held.append((move.start, move.stop, got))
            else:
                found = next(p for a, b, p in held if (a, b) == (move.start, move.stop))
                self._backend.send(found, self._rank(move.receiver), beside=self._beside)
        if self._signal:
            whole = self._backend.zeros(tuple(s.stop - s.start for s in box), self._carrier)
            for task in self._tasks():
                whole = whole + parts[id(task)][0][2]  # wait for it
        else:
            whole = self._joined({task: parts[id(task)] for task in self._tasks()}, box)
        return self._backend.cast(whole, self._dtype)

    def _joined(
        self, parts: Mapping[UnitTask, list[tuple[int, int, Tensor]]], box: tuple[slice, ...]
    ) -> Tensor:
        """What `box` holds, from the slices that have come of each task."""
        values = []
        for task, slices in parts.items():
            flat = [p for _, _, p in sorted(slices, key=lambda item: item[0])]
            value = flat[0] if len(flat) == 1 else self._backend.cat(flat, 0)
            values.append(value.reshape([stop - start for start, stop in task.box]))
        if len(values) == 1:
            return values[0]
        whole = self._backend.zeros(tuple(s.stop - s.start for s in box), self._carrier)
        for task, value in zip(parts, values, strict=True):
            at = tuple(
                slice(start - s.start, stop - s.start)
                for (start, stop), s in zip(task.box, box, strict=True)
            )
            whole[at] = value
        return whole

    def rehearse(self) -> None:
        """Issue this rank's moves on zeros, to see how long they take."""
        source = self._plan.source
        if self._device not in source.place.devices:
            self.receive()
            return
        box = _box(self._plan, source, self._device)
        self.send(self._backend.zeros(tuple(s.stop - s.start for s in box), self._dtype))

    def _tasks(self) -> Iterator[UnitTask]:
        for item in self._plan.scheduled:
            if self._device in item.delivery.task.receivers:
                yield item.delivery.task

    def _narrowed(self, shard: Tensor, task: UnitTask, box: tuple[slice, ...]) -> Tensor:
        for dim, ((start, stop), mine) in enumerate(zip(task.box, box, strict=True)):
            if stop - start != shard.shape[dim]:
                shard = self._backend.narrow(shard, dim, start - mine.start, stop - start)
        return self._backend.contiguous(shard)

    def _send(self, flat: Tensor, move: Move) -> None:
        size = 1 if self._signal else move.stop - move.start
        piece = self._backend.narrow(flat, 0, move.start, size)
        self._backend.send(piece, self._rank(move.receiver), beside=self._beside)

    def _receive(self, size: int, sender: int, arrivals: list[Arrival] | None) -> Tensor:
        into = None
        if arrivals is not None:
            arrivals.append(Arrival(size, self._carrier, self._backend))
            into = arrivals[-1].tensor
        return self._backend.receive(sender, size, self._carrier, into, beside=self._beside)

    def _rank(self, device: Device) -> int:
        return device[0] * self._gpus + device[1]


def _box(plan: ReshardPlan, end: End, device: Device) -> tuple[slice, ...]:
    return local_slices(plan.spec.shape, end.nd, end.mesh, end.place.devices.index(device))
