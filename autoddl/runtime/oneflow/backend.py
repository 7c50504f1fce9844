"""OneFlow as the runtime's back end.

Collectives: OneFlow's own local collectives know only the whole world. A group's ranks form a
one-dim placement instead: the local tensor is copied into the local part of an empty global tensor
on it, which changes label there with exactly one collective, S0 -> B, P -> S0, P -> B or S0 -> S1,
all of them on flat contiguous buffers. A change of label of a shaped tensor would take detours
(S1 -> B is an all-to-all and an all-gather), so `comm/redistribute.py` brings dims to the front
itself.

On the CPU S0 -> S1 sends one pair's piece at a time, in one direction, while most ranks wait: with
4 hosts it takes 3 times as long as the bytes need. There the pieces are exchanged pair by pair
instead (`jobs/exchange.py`), by an all-gather of the two, which sends both ways at once.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.asyncs as asyncs

from ...sbp.layout import Shape
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..backend import OptimizerFn, Vjp
from ..jobs.exchange import rounds
from ..jobs.guard import rank, world_size
from ..kernel import Kernel, OpaqueFn, OutputKernel
from .detach import detached
from .half import check_device
from .kernels import KERNELS
from .kernels.by_input import BY_INPUT
from .kernels.lean import LEAN
from .kernels.product import product_gradient
from .kernels.registry import OUTPUT_KERNELS
from .parameters import flow_sbp, local_part, merged_axes, new_parameter, optimizer_kind
from .pull_back import pull_back
from .trace.opaque import OpaqueCall
from .trace.submodule import as_kernel

# what a collective cannot carry travels as a type that it can
_CARRIERS = {flow.uint8: flow.int32}
_CPU_CARRIERS = {**_CARRIERS, flow.float16: flow.float32, flow.bfloat16: flow.float32}
# the same of `flow.comm.send` on the CPU
_SENT_AS = {"float16": "float32", "bfloat16": "float32", "bool": "int32", "uint8": "int32",
            "int8": "int32"}  # fmt: skip

_SPLIT_ROWS = flow.sbp.split(0)
_SPLIT_COLUMNS = flow.sbp.split(1)
_BROADCAST = flow.sbp.broadcast
_PARTIAL = flow.sbp.partial_sum


class OneFlow:
    """This process as one rank of a job; see `runtime.backend.Backend`."""

    def __init__(self, device: str | None = None) -> None:
        self.rank = rank()
        self.size = world_size()
        self.device = device or ("cuda" if flow.cuda.is_available() else "cpu")
        self._pairs: dict[tuple[int, int], Any] = {}

    # ---- tensors

    def zeros(self, shape: Shape, dtype: str) -> flow.Tensor:
        return flow.zeros(shape, dtype=getattr(flow, dtype), device=self.device)

    def full_like(self, x: flow.Tensor, value: float) -> flow.Tensor:
        return flow.full_like(x, value)

    def from_numpy(self, array: np.ndarray) -> flow.Tensor:
        return flow.from_numpy(array).to(self.device)

    def to_numpy(self, x: flow.Tensor) -> np.ndarray:
        return x.numpy()

    def to_device(self, x: flow.Tensor) -> flow.Tensor:
        return x.to(self.device)

    def is_tensor(self, x: object) -> bool:
        return isinstance(x, flow.Tensor)

    def dtype(self, x: flow.Tensor) -> str:
        return str(x.dtype).removeprefix("oneflow.")

    def nbytes(self, x: flow.Tensor) -> int:
        return x.numel() * x.element_size()

    def cast(self, x: flow.Tensor, dtype: str) -> flow.Tensor:
        return x.to(getattr(flow, dtype))

    def cat(self, parts: Sequence[flow.Tensor], dim: int) -> flow.Tensor:
        return flow.cat(list(parts), dim=dim)

    def narrow(self, x: flow.Tensor, dim: int, start: int, length: int) -> flow.Tensor:
        return x.narrow(dim, start, length)

    def permute(self, x: flow.Tensor, dims: Sequence[int]) -> flow.Tensor:
        return x.permute(*dims)

    def contiguous(self, x: flow.Tensor) -> flow.Tensor:
        return x.contiguous()

    def clone(self, x: flow.Tensor) -> flow.Tensor:
        return x.clone()

    def write(self, into: flow.Tensor, x: flow.Tensor) -> None:
        with flow.no_grad():
            into.copy_(x)

    def scale(self, x: flow.Tensor, factor: float) -> None:
        with flow.no_grad():
            x.mul_(factor)

    def any_not_finite(self, tensors: Sequence[flow.Tensor]) -> flow.Tensor:
        if not tensors:
            return flow.zeros(1, device=self.device)
        with flow.no_grad():
            # zero times what is not finite is no number, and stays so in sums
            found = [(x * 0).sum().reshape(1).to(flow.float32) for x in tensors]
            return flow.isnan(flow.cat(found).sum().reshape(1)).to(flow.float32)

    def no_grad(self) -> AbstractContextManager[Any]:
        return flow.no_grad()

    def detached(self, x: flow.Tensor) -> flow.Tensor:
        return detached(x)

    def watched(self, x: flow.Tensor) -> flow.Tensor:
        return detached(x).requires_grad_()

    def pull_back(
        self, watched: Sequence[flow.Tensor | None], outputs: Sequence[flow.Tensor]
    ) -> Vjp:
        return pull_back(watched, outputs)

    # ---- collectives

    def channel(self, ranks: Sequence[int]) -> Any:
        """The ranks' placement."""
        return flow.placement(self.device, ranks=list(ranks))

    def all_gather(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        size = len(channel.ranks)
        return _change(x, (x.shape[0] * size,), channel, _SPLIT_ROWS, _BROADCAST)

    def reduce_scatter(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        return _change(x, (x.shape[0],), channel, _PARTIAL, _SPLIT_ROWS)

    def all_reduce(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        return _change(x, (x.shape[0],), channel, _PARTIAL, _BROADCAST)

    def all_to_all(self, channel: Any, x: flow.Tensor) -> flow.Tensor:
        size, width = x.shape
        if self.device == "cpu":
            return self._exchange([int(r) for r in channel.ranks], x)
        flat = x.reshape(1, -1)
        got = _change(flat, (size, size * width), channel, _SPLIT_ROWS, _SPLIT_COLUMNS)
        return got.reshape(size, width)

    def _exchange(self, ranks: Sequence[int], x: flow.Tensor) -> flow.Tensor:
        """An all-to-all in rounds; in each of them this rank and one other swap their rows."""
        rows, mine = list(x), self.rank
        for other in rounds(len(ranks), ranks.index(mine)):
            theirs = ranks[other]
            pair = (min(mine, theirs), max(mine, theirs))
            if pair not in self._pairs:
                self._pairs[pair] = self.channel(pair)
            both = _change(
                rows[other], (2 * x.shape[1],), self._pairs[pair], _SPLIT_ROWS, _BROADCAST
            )
            rows[other] = both.reshape(2, -1)[1 if mine < theirs else 0]
        return flow.stack(rows)

    def amax(self, x: flow.Tensor) -> flow.Tensor:
        return x.amax(dim=0)

    def broadcast(self, x: flow.Tensor, source: int) -> flow.Tensor:
        if self.size > 1:
            flow.comm.broadcast(x, source)
        return x

    def as_message(self, x: flow.Tensor) -> flow.Tensor:
        return x.clone() if x.storage_offset() else x

    def send(self, x: flow.Tensor, to: int) -> None:
        flow.comm.send(x, to, send_meta=False)

    def receive(
        self, source: int, size: int, dtype: str, into: flow.Tensor | None = None
    ) -> flow.Tensor:
        kind, device = getattr(flow, dtype), flow.device(self.device)
        return flow.comm.recv(source, shape=(size,), dtype=kind, device=device, out=into)

    def carrier(self, dtype: str) -> str:
        return _SENT_AS.get(dtype, dtype)

    def beside_compute(self, overlap: bool) -> Callable[[], AbstractContextManager[Any]]:
        """Messages on a thread of OneFlow's own; all communication of a rank stays one queue."""
        if not overlap:
            return nullcontext
        thread = asyncs.Thread()
        return lambda: asyncs.thread(thread)

    def wait(self) -> None:
        flow._oneflow_internal.eager.Sync()

    def at_exit(self, call: Callable[[], None]) -> None:
        atexit.register(call)

    # ---- training

    def kernels(self, by_input: bool) -> Mapping[str, Kernel]:
        return KERNELS | LEAN | (BY_INPUT if by_input else {})

    def opaque_kernel(self, call: OpaqueCall) -> OpaqueFn:
        return as_kernel(call)

    def output_kernel(self, kind: str, output: int) -> OutputKernel:
        return OUTPUT_KERNELS[kind, output]

    def product_gradient(
        self, a: flow.Tensor, b: flow.Tensor, attrs: Mapping[str, Any], dy: flow.Tensor, index: int
    ) -> flow.Tensor:
        return product_gradient(a, b, attrs, dy, index)

    def check_precision(self, precision: str) -> None:
        check_device(precision)

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Any, flow.Tensor]:
        """A global tensor, so that optimizers and their state need nothing special."""
        parameter = new_parameter(shape, dtype, nd, mesh, first, self.device)
        parameter.requires_grad_(trained)
        return parameter, local_part(parameter)

    def gradient(self, parameter: Any) -> flow.Tensor | None:
        return None if parameter.grad is None else local_part(parameter.grad)

    def set_gradient(self, parameter: Any, gradient: flow.Tensor | None) -> None:
        if gradient is None:
            parameter.grad = None
            return
        with flow.no_grad():
            if parameter.grad is None:
                parameter.grad = flow.zeros_like(parameter)
            local_part(parameter.grad).copy_(gradient)

    def is_placed(self, parameter: Any, shape: Shape, nd: NdSbp, mesh: Mesh) -> bool:
        _, labels = merged_axes(shape, nd, mesh)
        return not parameter.is_global or tuple(parameter.sbp) == tuple(flow_sbp(labels))

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> Any:
        made = make(parameters)
        if not isinstance(made, flow.optim.Optimizer):
            raise ValueError(
                "optimizer must be a function from a list of parameters to a oneflow optimizer, "
                f"e.g. lambda p: flow.optim.SGD(p, lr=0.1); it gave {type(made).__name__}"
            )
        return made

    def optimizer_kind(self, make: OptimizerFn) -> str:
        return optimizer_kind(make)

    def state_names(self, model: flow.nn.Module) -> Mapping[str, str]:
        first: dict[flow.Tensor, str] = {}
        return {k: first.setdefault(t, k) for k, t in model.state_dict(keep_vars=True).items()}

    def model_tensor(self, model: flow.nn.Module | None, name: str) -> flow.Tensor:
        if model is None:
            raise KeyError(name)
        path, _, key = name.rpartition(".")
        owner = dict(model.named_modules())[path]
        return {**owner._parameters, **owner._buffers}[key]


def _change(
    x: flow.Tensor, shape: tuple[int, ...], placement: Any, source: Any, target: Any
) -> flow.Tensor:
    """Local `x` as a rank's part of a global [shape] placed as `source`; its part of `target`."""
    dtype = x.dtype
    carrier = (_CPU_CARRIERS if placement.type == "cpu" else _CARRIERS).get(dtype, dtype)
    whole = flow.empty(*shape, dtype=carrier, placement=placement, sbp=[source])
    whole.to_local().copy_(x.to(carrier))
    moved = whole.to_global(placement=placement, sbp=[target], check_meta=False)
    return moved.to_local().to(dtype)
