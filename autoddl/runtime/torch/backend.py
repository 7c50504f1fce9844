"""PyTorch as the runtime's back end: ATen on local shards, collectives of `torch.distributed`."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...sbp.layout import Shape, local_shape
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..backend import Facts, Kernels, OptimizerFn, Vjp, precisions_of
from ..comm.beside import Beside, T
from ..jobs.guard import rank, world_size
from ..tracing.checks import hooked
from ..update.parameters import check_handed, check_step
from . import collectives
from .autograd import Watcher, pull_back
from .collectives import Channel
from .kernels import CHAINED, IN_PLACE, KERNELS
from .kernels.loss import nll_weight
from .kernels.product import BY_INPUT, product_gradient
from .optimizer import TorchOptimizer, check_parts
from .trace.opaque import as_kernel


class Torch:
    """This process as one rank of a job; see `runtime.backend.Backend`."""

    def __init__(self, device: str | None = None) -> None:
        self.rank = rank()
        self.size = world_size()
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        name = f"PyTorch {torch.__version__}"
        self.facts = Facts(name, device, torch.Tensor, precisions_of(torch, device), {})
        self.kernels = Kernels(
            KERNELS, BY_INPUT, {("nll", 1): nll_weight}, as_kernel, product_gradient,
            CHAINED, IN_PLACE,
        )  # fmt: skip
        one_thread = functools.partial(torch.set_num_threads, 1)  # of that thread
        self.thread: Beside | None = Beside(one_thread)
        self._leaving, self._watcher = Beside(one_thread), Watcher()
        collectives.join_job(self.rank, self.size, device)

    # ---- tensors

    def zeros(self, shape: Shape, dtype: str) -> torch.Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.facts.device)

    def from_numpy(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.facts.device)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray:
        own = x.detach().cpu()  # NumPy has no bfloat16
        return (own.float() if own.dtype is torch.bfloat16 else own).numpy()

    def cast(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(self.facts.device, getattr(torch, dtype))

    def cat(self, parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
        return torch.cat(list(parts), dim)

    def narrow(self, x: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
        return x.narrow(dim, start, length)

    def permute(self, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        return x.permute(*dims)

    def contiguous(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous()

    def write(self, into: torch.Tensor, x: torch.Tensor) -> None:
        with torch.no_grad():
            into.copy_(x)

    def max_of_rows(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(0)

    def held_bytes(self) -> int:
        if self.facts.device == "cuda":
            return torch.cuda.memory_reserved()
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def no_grad(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def detached(self, x: torch.Tensor, watched: bool = False) -> torch.Tensor:
        return self._watcher.watched(x) if watched else x.detach()

    def pull_back(
        self, watched: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor]
    ) -> Vjp:
        return pull_back(watched, outputs)

    # ---- collectives

    def channel(self, ranks: Sequence[int]) -> Channel:
        return collectives.channel(ranks)

    def all_gather(self, channel: Channel, x: torch.Tensor) -> torch.Tensor:
        return self._in_order(collectives.all_gather, channel, x.detach())

    def reduce_scatter(self, channel: Channel, x: torch.Tensor) -> torch.Tensor:
        return self._in_order(collectives.reduce_scatter, channel, x.detach())

    def all_reduce(self, channel: Channel, x: torch.Tensor, is_own: bool = False) -> torch.Tensor:
        return self._in_order(collectives.all_reduce, channel, x.detach(), is_own)

    def all_to_all(self, channel: Channel, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return self._in_order(collectives.all_to_all, channel, x.detach(), list(sizes))

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        local = x.detach().to(self.facts.device)
        if self.size == 1:
            return local
        flat = local.contiguous().clone()  # it is overwritten
        self._in_order(dist.broadcast, flat, source)
        return flat

    def _in_order(self, collective: Callable[..., T], *given: Any) -> T:
        assert self.thread is not None
        return self.thread.in_order(functools.partial(collective, *given))

    def send(self, x: torch.Tensor, to: int, *, beside: bool = False) -> None:
        kept = x.detach().contiguous()
        self._leaving.later(functools.partial(collectives.hold, dist.isend(kept, to), kept))

    def receive(
        self,
        source: int,
        size: int,
        dtype: str,
        into: torch.Tensor | None = None,
        *,
        beside: bool = False,
    ) -> torch.Tensor:
        kind = getattr(torch, dtype)
        got = torch.empty(size, dtype=kind, device=self.facts.device) if into is None else into
        dist.recv(got, source)
        return got

    def beside(self) -> AbstractContextManager[Any]:
        return nullcontext()  # what goes on beside computation is asked for by `later`

    def wait(self, x: torch.Tensor | None = None) -> None:
        if x is None:  # what a collective or a message has brought is there at once
            self._leaving.wait()
            if self.thread is not None:
                self.thread.wait()
        if self.facts.device == "cuda":
            torch.cuda.synchronize()

    # ---- training

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Any, torch.Tensor]:
        """A parameter of this rank's part alone: optimizers are to work element by element."""
        local = local_shape(shape, nd, mesh, self.rank - first)
        kind = getattr(torch, dtype)
        parameter = torch.nn.Parameter(
            torch.empty(local, dtype=kind, device=self.facts.device), requires_grad=trained
        )
        parameter.is_part = local != tuple(shape)
        return parameter, parameter.detach()

    def set_gradient(self, parameter: Any, gradient: torch.Tensor | None) -> None:
        parameter.grad = gradient if gradient is None else gradient.contiguous()

    def gradient(self, parameter: Any) -> torch.Tensor | None:
        return parameter.grad

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> TorchOptimizer:
        made = make(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise ValueError(
                "optimizer must be a function from a list of parameters to a torch optimizer, "
                f"e.g. lambda p: torch.optim.SGD(p, lr=0.1); it gave {type(made).__name__}"
            )
        check_handed(parameters, (p for group in made.param_groups for p in group["params"]))
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
            raise hooked("a parameter that the optimizer was given")
        check_step(type(made))
        check_parts(made)
        return TorchOptimizer(made)
