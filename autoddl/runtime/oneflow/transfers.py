"""Transfers between pipeline stages: one rank's part of a resharding plan.

The plan's moves are one order of point-to-point copies; each rank issues those that it takes part
in, in that order, so that two ranks meet at the same one. They run on a thread of OneFlow's own and
so beside computation; all communication of a rank stays one queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import oneflow as flow
import oneflow.asyncs as asyncs

from ...cluster.submesh import Device, SubMesh
from ...plans.reshard.plan import ReshardPlan
from ...plans.reshard.strategies import Move
from ...plans.reshard.unit_tasks import UnitTask
from ...sbp.layout import local_slices
from ...sbp.placement import NdSbp
from .arrival import Arrival

# what `flow.comm.send` cannot carry on the CPU travels as a type that it can
_CARRIERS = {"float16": flow.float32, "bfloat16": flow.float32, "bool": flow.int32,
             "uint8": flow.int32, "int8": flow.int32}  # fmt: skip


class CommThread:
    """OneFlow's thread for this rank's transfers; `overlap` False issues them with the rest."""

    def __init__(self, overlap: bool) -> None:
        self._thread = asyncs.Thread() if overlap else None

    def __call__(self) -> AbstractContextManager[Any]:
        return asyncs.thread(self._thread) if self._thread else nullcontext()


class Resharding:
    """Carries out `plan` on the rank of `device`; `gpus_per_node` numbers the job's ranks.

    signal: of each slice only one element travels, to see what the transfers cost
    """

    def __init__(
        self,
        plan: ReshardPlan,
        device: Device,
        gpus_per_node: int,
        kind: str,
        thread: CommThread,
        *,
        signal: bool = False,
    ) -> None:
        self._plan = plan
        self._device = device
        self._gpus = gpus_per_node
        self._kind = kind
        self._thread = thread
        self._signal = signal
        self._dtype = getattr(flow, plan.spec.dtype)
        self._carrier = _CARRIERS.get(plan.spec.dtype, self._dtype)
        self._moves = [
            (task, move)
            for task, move in plan.moves()
            if device in (move.sender, move.receiver) and not (signal and move.start)
        ]

    def send(self, shard: flow.Tensor) -> None:
        """Issue this rank's moves as a rank of the source, whose local part is `shard`."""
        box = _box(self._plan, self._plan.source.place, self._plan.source.nd, self._device)
        pieces: dict[int, flow.Tensor] = {}
        for task, move in self._moves:
            assert move.sender == self._device
            if id(task) not in pieces:
                part = _narrowed(shard, task, box)
                pieces[id(task)] = part.to(self._carrier).reshape(-1)
            self._send(pieces[id(task)], move)

    def receive(self, arrivals: list[Arrival] | None = None) -> flow.Tensor:
        """Issue this rank's moves as a rank of the target; gives its local part.

        arrivals: if given, gets those of the messages, whose memory is NumPy's then
        """
        box = _box(self._plan, self._plan.target.place, self._plan.target.nd, self._device)
        parts: dict[int, list[tuple[int, int, flow.Tensor]]] = {}
        for task, move in self._moves:
            held = parts.setdefault(id(task), [])
            if move.receiver == self._device:
                size = 1 if self._signal else move.stop - move.start
                got = self._receive(size, self._rank(move.sender), arrivals)
                held.append((move.start, move.stop, got))
            else:
                found = next(p for a, b, p in held if (a, b) == (move.start, move.stop))
                with self._thread():
                    flow.comm.send(found, self._rank(move.receiver), send_meta=False)
        whole = flow.zeros(*(s.stop - s.start for s in box), dtype=self._carrier, device=self._kind)
        for task in self._tasks():
            if self._signal:
                whole = whole + parts[id(task)][0][2]  # wait for it
                continue
            flat = [p for _, _, p in sorted(parts[id(task)], key=lambda item: item[0])]
            sizes = [stop - start for start, stop in task.box]
            value = (flat[0] if len(flat) == 1 else flow.cat(flat)).reshape(*sizes)
            if list(whole.shape) == sizes:
                whole = value
                continue
            at = tuple(
                slice(start - s.start, stop - s.start)
                for (start, stop), s in zip(task.box, box, strict=True)
            )
            whole[at] = value
        return whole.to(self._dtype)

    def _tasks(self) -> Iterator[UnitTask]:
        for item in self._plan.scheduled:
            if self._device in item.delivery.task.receivers:
                yield item.delivery.task

    def _send(self, flat: flow.Tensor, move: Move) -> None:
        piece = flat.narrow(0, move.start, move.stop - move.start)
        if piece.storage_offset():
            piece = piece.clone()
        if self._signal:
            piece = piece.narrow(0, 0, 1)
        with self._thread():
            flow.comm.send(piece, self._rank(move.receiver), send_meta=False)

    def _receive(self, size: int, sender: int, arrivals: list[Arrival] | None) -> flow.Tensor:
        device = flow.device(self._kind)
        into = None
        if arrivals is not None:
            arrivals.append(Arrival(size, self._carrier))
            into = arrivals[-1].tensor
        with self._thread():
            return flow.comm.recv(
                sender, shape=(size,), dtype=self._carrier, device=device, out=into
            )

    def _rank(self, device: Device) -> int:
        return device[0] * self._gpus + device[1]


def _box(plan: ReshardPlan, place: SubMesh, nd: NdSbp, device: Device) -> tuple[slice, ...]:
    return local_slices(plan.spec.shape, nd, place.mesh, place.devices.index(device))


def _narrowed(shard: flow.Tensor, task: UnitTask, box: tuple[slice, ...]) -> flow.Tensor:
    for dim, ((start, stop), mine) in enumerate(zip(task.box, box, strict=True)):
        if stop - start != shard.shape[dim]:
            shard = shard.narrow(dim, start - mine.start, stop - start)
    return shard.contiguous()
