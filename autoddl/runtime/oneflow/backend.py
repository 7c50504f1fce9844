"""OneFlow as the runtime's back end.

Collectives: OneFlow's own local collectives know only the whole world. A group's ranks form a
one-dim placement instead: the local tensor is copied into the local part of an empty global tensor
on it, which changes label there with exactly one collective, S0 -> B, P -> S0, P -> B or S0 -> S1,
all of them on flat contiguous buffers. A change of label of a shaped tensor would take detours
(S1 -> B is an all-to-all and an all-gather), so `comm/redistribute.py` brings dims to the front
itself. Collectives run on a thread of their own, one after the other, beside computation.

On the CPU S0 -> S1 sends one pair's piece at a time, in one direction, while most ranks wait: with
4 hosts it takes 3 times as long as the bytes need. There the pieces are exchanged pair by pair
instead (`exchange.py`), by an all-gather of the two, which sends both ways at once.
"""

from __future__ import annotations

import functools
import itertools
import resource
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.asyncs as asyncs
from oneflow import _C

from ...sbp.layout import Shape
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..backend import Facts, Kernels, OptimizerFn, Vjp, precisions_of
from ..comm.beside import Beside
from ..jobs.guard import rank, world_size
from ..update.parameters import check_handed
from .autograd import detached, pull_back
from .exchange import rounds
from .kernels import KERNELS
from .kernels.by_input import BY_INPUT
from .kernels.lean import LEAN
from .kernels.product import product_gradient
from .kernels.registry import OUTPUT_KERNELS
from .optimizer import FlowOptimizer
from .parameters import local_part, new_parameter
from .trace.opaque import as_kernel

# what a collective cannot carry travels as a type that it can
_CARRIERS = {flow.uint8: flow.int32}
_CPU_CARRIERS = {**_CARRIERS, flow.float16: flow.float32, flow.bfloat16: flow.float32}
# the same of `flow.comm.send` and `flow.comm.broadcast`
_SENT_AS = {"float16": "float32", "bfloat16": "float32", "bool": "int32", "uint8": "int32",
            "int8": "int32"}  # fmt: skip

_SPLIT_ROWS = flow.sbp.split(0)
_SPLIT_COLUMNS = flow.sbp.split(1)
_BROADCAST = flow.sbp.broadcast
_PARTIAL = flow.sbp.partial_sum


class OneFlow:
    """This process as one rank of a job; see `runtime.backend.Backend`."""

    def __init__(self, device: str | None = None) -> None:
        self.thread: Beside | None = None
        self.rank = rank()
        self.size = world_size()
        device = device or ("cuda" if flow.cuda.is_available() else "cpu")
        name, precisions = f"OneFlow {flow.__version__}", precisions_of(flow, device)
        self.facts = Facts(name, device, flow.Tensor, precisions, _SENT_AS)
        self.kernels = Kernels(
            {**KERNELS, **LEAN}, BY_INPUT, OUTPUT_KERNELS, as_kernel, product_gradient
        )
        self._pairs: dict[tuple[int, int], Any] = {}

    # ---- tensors

    def zeros(self, shape: Shape, dtype: str) -> flow.Tensor:
        return flow.zeros(shape, dtype=getattr(flow, dtype), device=self.facts.device)

    def from_numpy(self, array: np.ndarray) -> flow.Tensor:
        return flow.from_numpy(array).to(self.facts.device)

    def to_numpy(self, x: flow.Tensor) -> np.ndarray:
        return x.numpy()

    def cast(self, x: flow.Tensor, dtype: str) -> flow.Tensor:
        return x.to(self.facts.device, getattr(flow, dtype))

    def cat(self, parts: Sequence[flow.Tensor], dim: int) -> flow.Tensor:
        return flow.cat(list(parts), dim=dim)

    def narrow(self, x: flow.Tensor, dim: int, start: int, length: int) -> flow.Tensor:
        return x.narrow(dim, start, length)

    def permute(self, x: flow.Tensor, dims: Sequence[int]) -> flow.Tensor:
        return x.permute(*dims)

    def contiguous(self, x: flow.Tensor) -> flow.Tensor:
        return x.contiguous()

    def write(self, into: flow.Tensor, x: flow.Tensor) -> None:
        with flow.no_grad():
            into.copy_(x)

    def max_of_rows(self, x: flow.Tensor) -> flow.Tensor:
        return x.amax(dim=0)

    def held_bytes(self) -> int:
        if self.facts.device == "cuda":
            return int(flow._oneflow_internal.GetCUDAMemoryUsed() * (1 << 20))
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def no_grad(self) -> AbstractContextManager[Any]:
        return flow.no_grad()

    def detached(self, x: flow.Tensor, watched: bool = False) -> flow.Tensor:
        return detached(x).requires_grad_() if watched else detached(x)

    def pull_back(
        self, watched: Sequence[flow.Tensor | None], outputs: Sequence[flow.Tensor]
    ) -> Vjp:
        return pull_back(watched, outputs)

    # ---- collectives

    def channel(self, ranks: Sequence[int]) -> Any:
        """The ranks' placement."""
        return flow.placement(self.facts.device, ranks=list(ranks))

    def all_gather(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        size = len(channel.ranks)
        return _change(x, (x.shape[0] * size,), channel, _SPLIT_ROWS, _BROADCAST)

    def reduce_scatter(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        return _change(x, (x.shape[0],), channel, _PARTIAL, _SPLIT_ROWS)

    def all_reduce(self, channel: Any, x: flow.Tensor, is_own: bool = False) -> flow.Tensor:
        return _change(x, (x.shape[0],), channel, _PARTIAL, _BROADCAST)

    def all_to_all(self, channel: Any, x: flow.Tensor, sizes: Sequence[int]) -> flow.Tensor:
        if self.facts.device == "cpu" or len({*sizes}) > 1:
            starts = itertools.accumulate(sizes, initial=0)
            rows = [x.narrow(0, at, n) for at, n in zip(starts, sizes, strict=False)]
            return flow.cat(self._exchange([int(r) for r in channel.ranks], rows), 0)
        size, count = len(sizes), x.shape[0]
        return _change(
            x.reshape(1, -1), (size, count), channel, _SPLIT_ROWS, _SPLIT_COLUMNS
        ).reshape(-1)

    def _exchange(self, ranks: Sequence[int], rows: list[flow.Tensor]) -> list[flow.Tensor]:
        """An all-to-all in rounds; in each of them this rank and one other swap their rows."""
        mine = self.rank
        for other in rounds(len(ranks), ranks.index(mine)):
            theirs = ranks[other]
            pair = (min(mine, theirs), max(mine, theirs))
            if pair not in self._pairs:
                self._pairs[pair] = self.channel(pair)
            both = _change(
                rows[other], (2 * rows[other].shape[0],), self._pairs[pair], _SPLIT_ROWS, _BROADCAST
            )
            rows[other] = both.reshape(2, -1)[1 if mine < theirs else 0]
        return rows

    def broadcast(self, x: flow.Tensor, source: int) -> flow.Tensor:
        local = detached(x).to(self.facts.device)
        if self.size == 1:
            return local
        name = str(x.dtype).removeprefix("oneflow.")
        carrier = getattr(flow, _SENT_AS.get(name, name))
        flat = local.contiguous().reshape(-1).to(carrier).clone()  # it is overwritten
        flow.comm.broadcast(flat, source)
        return flat.to(x.dtype).reshape(x.shape)

    def send(self, x: flow.Tensor, to: int, *, beside: bool = False) -> None:
        x = x.clone() if x.storage_offset() else x  # it would send the storage from its beginning
        with self.beside() if beside else nullcontext():
            flow.comm.send(x, to, send_meta=False)

    def receive(
        self,
        source: int,
        size: int,
        dtype: str,
        into: flow.Tensor | None = None,
        *,
        beside: bool = False,
    ) -> flow.Tensor:
        kind, device = getattr(flow, dtype), flow.device(self.facts.device)
        with self.beside() if beside else nullcontext():
            return flow.comm.recv(source, shape=(size,), dtype=kind, device=device, out=into)

    def beside(self) -> AbstractContextManager[Any]:
        return asyncs.thread(_communication_thread())

    def wait(self, x: flow.Tensor | None = None) -> None:
        if x is None:
            flow._oneflow_internal.eager.Sync()
        elif x.nelement():
            detached(x).reshape(-1).narrow(0, 0, 1).item()

    # ---- training

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Any, flow.Tensor]:
        """A global tensor, so that optimizers and their state need nothing special."""
        parameter = new_parameter(shape, dtype, nd, mesh, first, self.facts.device)
        parameter.requires_grad_(trained)
        return parameter, local_part(parameter)

    def set_gradient(self, parameter: Any, gradient: flow.Tensor | None) -> None:
        if gradient is None:
            parameter.grad = None
            return
        with flow.no_grad():
            if not parameter.is_global:
                parameter.grad = gradient.contiguous()
                return
            if parameter.grad is None:
                parameter.grad = _C.global_empty(
                    parameter.shape, dtype=parameter.dtype, placement=parameter.placement,
                    sbp=list(parameter.sbp),
                )  # fmt: skip
            local_part(parameter.grad).copy_(gradient)

    def gradient(self, parameter: Any) -> flow.Tensor | None:
        return None if parameter.grad is None else local_part(parameter.grad)

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> FlowOptimizer:
        made = make(parameters)
        if not isinstance(made, flow.optim.Optimizer):
            raise ValueError(
                "optimizer must be a function from a list of parameters to a oneflow optimizer, "
                f"e.g. lambda p: flow.optim.SGD(p, lr=0.1); it gave {type(made).__name__}"
            )
        check_handed(parameters, (p for group in made.param_groups for p in group.parameters))
        return FlowOptimizer(made)


@functools.cache
def _communication_thread() -> Any:
    """OneFlow's thread for communication beside computation: one for all trainers of the process.

    A process may have 16 of them; all communication of a rank stays one queue. An operator waits
    for the tensors that it reads alone (2 hosts, an all-gather of 161 ms and 275 ms of products:
    267 ms together, 506 where both are in one queue).
    """
    return asyncs.Thread()


def _change(
    x: flow.Tensor, shape: tuple[int, ...], placement: Any, source: Any, target: Any
) -> flow.Tensor:
    """Local `x` as a rank's part of a global [shape] placed as `source`; its part of `target`.

    It is copied there: `Tensor.to_global` of a local tensor compares what the whole job's ranks
    say, and hangs in groups that are not all of them.
    """
    dtype = x.dtype
    carrier = (_CPU_CARRIERS if placement.type == "cpu" else _CARRIERS).get(dtype, dtype)
    with asyncs.thread(_communication_thread()):
        whole = _C.global_empty(shape, dtype=carrier, placement=placement, sbp=[source])
        whole.to_local().copy_(x.to(carrier))
        moved = whole.to_global(placement=placement, sbp=[target], check_meta=False)
        return moved.to_local().to(dtype)
