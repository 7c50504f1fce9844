"""A back end in NumPy whose ranks are threads: a second implementation, to prove the first's seam.

Kernels are the reference operators of the rules' tests with their pullbacks, and those that
communicate inside are the oracle's. Collectives meet at a barrier.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Queue
from types import GeneratorType
from typing import Any

import numpy as np

from autoddl.runtime.backend import Facts, Kept, Kernels, Optimizer, OptimizerFn, Vjp
from autoddl.runtime.comm.beside import Beside
from autoddl.runtime.kernel import ByInput, Context, Explicit, Kernel
from autoddl.sbp.layout import Shape, local_slices
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import Shard
from autoddl.sbp.placement import NdSbp
from tests.sbp import lockstep_ops, operators

PATIENCE_S = 60.0
PRODUCTS = ("matmul", "broadcast_matmul", "batch_matmul")
_ONE_TAPE = threading.Lock()  # HIPS autograd records on one tape for all threads


class Meeting:
    """Where the ranks of a group lay down one value each, and see those of all."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.barrier = threading.Barrier(len(ranks), timeout=PATIENCE_S)
        self._values: dict[int, Any] = {}

    def exchange(self, rank: int, value: Any, use: Callable[[list[Any]], Any]) -> Any:
        """What `use` makes of the values of all, in rank order: nothing that shares their memory.

        They are the ranks' own, who may change them when they go on.
        """
        self._values[rank] = value
        self.barrier.wait()
        found = use([self._values[r] for r in self.ranks])
        self.barrier.wait()  # nobody begins the next before all have seen this
        return found


class World:
    """What the threads of one job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._meetings: dict[tuple[int, ...], Meeting] = {}
        self._queues: dict[tuple[int, int], Queue] = {}

    def meeting(self, ranks: Sequence[int]) -> Meeting:
        with self._lock:
            return self._meetings.setdefault(tuple(ranks), Meeting(ranks))

    def queue(self, source: int, target: int) -> Queue:
        with self._lock:
            return self._queues.setdefault((source, target), Queue())

    def run(self, work: Callable[[NumPy], Any]) -> list[Any]:
        """`work` on every rank; what each gives. An exception of any rank is raised."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = work(NumPy(self, rank))
            except BaseException as error:
                errors.append(error)
                for meeting in list(self._meetings.values()):
                    meeting.barrier.abort()

        threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
        if errors:
            raise next(e for e in errors if not isinstance(e, threading.BrokenBarrierError))
        assert not any(thread.is_alive() for thread in threads), "a rank waits for ever"
        return results


@dataclass
class Parameter:
    """What the optimizer has of a parameter: this rank's part, and its gradient."""

    value: np.ndarray
    gradient: np.ndarray | None = None


@dataclass
class Momentum:
    """SGD with momentum; see also `runtime.backend.Optimizer`."""

    parameters: list[Parameter]
    lr: float
    momentum: float
    kind: str = "momentum"
    steps: int = 0
    _velocity: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def own(self) -> Any:
        return self

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"lr": self.lr, "momentum": self.momentum}

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        return [self.defaults]

    def step(self) -> None:
        self.steps += 1
        for p in self.parameters:
            if p.gradient is not None:
                self._velocity[id(p)] = self.momentum * self._velocity.get(id(p), 0.0) + p.gradient
                p.value -= self.lr * self._velocity[id(p)]

    def read(self, parameter: Parameter) -> Kept:
        return Kept({"velocity": self._velocity[id(parameter)]}, {"lr": self.lr})

    def write(self, parameter: Parameter, kept: Kept) -> None:
        self._velocity[id(parameter)] = kept.tensors["velocity"].copy()
        self.lr = kept.options["lr"]


class NumPy:
    """One rank; see `runtime.backend.Backend`."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.thread: Beside | None = None
        self.size = world.size
        self.facts = Facts("NumPy", "cpu", np.ndarray, ("float32", "float64"), {})
        known = {kind: _kernel(kind) for kind in (*operators.FORWARD, "fork", "identity")}
        by_input = {kind: _by_input(known[kind]) for kind in PRODUCTS}
        outputs = {("nll", 1): _weight_of_rows}
        self.kernels = Kernels(known, by_input, outputs, _no_module, _product_gradient)

    # ---- tensors

    def zeros(self, shape: Shape, dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype)

    def from_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        return x

    def cast(self, x: np.ndarray, dtype: str) -> np.ndarray:
        return np.asarray(x, dtype)

    def cat(self, parts: Sequence[np.ndarray], dim: int) -> np.ndarray:
        return np.concatenate(parts, dim)

    def narrow(self, x: np.ndarray, dim: int, start: int, length: int) -> np.ndarray:
        return x[(slice(None),) * dim + (slice(start, start + length),)]

    def permute(self, x: np.ndarray, dims: Sequence[int]) -> np.ndarray:
        return x.transpose(dims)

    def contiguous(self, x: np.ndarray) -> np.ndarray:
        return x if x.flags.c_contiguous else x.copy()

    def write(self, into: np.ndarray, x: np.ndarray) -> None:
        into[...] = x

    def max_of_rows(self, x: np.ndarray) -> np.ndarray:
        return x.max(axis=0)

    def held_bytes(self) -> int:
        return 0  # threads share what their process holds

    def no_grad(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()

    def detached(self, x: np.ndarray, watched: bool = False) -> np.ndarray:
        return x

    def pull_back(self, watched: Sequence[Any], outputs: Sequence[np.ndarray]) -> Vjp:
        raise AssertionError("NumPy records nothing")

    # ---- collectives

    def channel(self, ranks: Sequence[int]) -> Meeting:
        return self.world.meeting(ranks)

    def all_gather(self, channel: Meeting, x: np.ndarray) -> np.ndarray:
        return channel.exchange(self.rank, x, np.concatenate)

    def reduce_scatter(self, channel: Meeting, x: np.ndarray) -> np.ndarray:
        pieces = np.split(self.all_reduce(channel, x), len(channel.ranks))
        return pieces[channel.ranks.index(self.rank)]

    def all_reduce(self, channel: Meeting, x: np.ndarray, is_own: bool = False) -> np.ndarray:
        return channel.exchange(self.rank, x, partial(np.sum, axis=0))

    def all_to_all(self, channel: Meeting, x: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        mine = channel.ranks.index(self.rank)
        rows = np.split(x, np.cumsum(sizes)[:-1])

        def joined(every: Sequence[list[np.ndarray]]) -> np.ndarray:
            got = [given[mine] for given in every]
            assert [len(part) for part in got] == list(sizes)
            return np.concatenate(got)

        return channel.exchange(self.rank, rows, joined)

    def broadcast(self, x: np.ndarray, source: int) -> np.ndarray:
        meeting = self.world.meeting(range(self.size))
        return meeting.exchange(self.rank, x, lambda every: every[source].copy())

    def send(self, x: np.ndarray, to: int, *, beside: bool = False) -> None:
        self.world.queue(self.rank, to).put(x.copy())

    def receive(
        self, source: int, size: int, dtype: str, into: Any = None, *, beside: bool = False
    ) -> np.ndarray:
        got = self.world.queue(source, self.rank).get(timeout=PATIENCE_S)
        assert into is None and got.shape == (size,) and str(got.dtype) == dtype
        return got

    def beside(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()

    def wait(self, x: np.ndarray | None = None) -> None:
        pass

    # ---- training

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Parameter, np.ndarray]:
        pieces = local_slices(shape, nd, mesh, self.rank - first)
        parameter = Parameter(np.zeros([s.stop - s.start for s in pieces], dtype))
        return parameter, parameter.value

    def set_gradient(self, parameter: Parameter, gradient: np.ndarray | None) -> None:
        parameter.gradient = gradient

    def gradient(self, parameter: Parameter) -> np.ndarray | None:
        return parameter.gradient

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> Optimizer:
        return make(parameters)


def _weight_of_rows(
    ctx: Context, inputs: Sequence[np.ndarray | None], attrs: Mapping[str, Any]
) -> np.ndarray:
    """The second output of `nll`, which does not need the first input."""
    _, target, *weights = inputs
    assert target is not None
    counts = (target != attrs["ignore_index"]).astype(ctx.spec.outputs[0].dtype)
    if weights and weights[0] is not None:
        return counts * weights[0][target * (counts > 0)]
    return counts


def _no_module(call: Any) -> Any:
    raise AssertionError("NumPy has no modules")


def _product_gradient(
    a: np.ndarray, b: np.ndarray, attrs: Mapping[str, Any], dy: np.ndarray, index: int
) -> np.ndarray:
    with _ONE_TAPE:
        shard: Any = None  # a product knows no place
        ran: Any = operators.kernel("matmul")([a, b], attrs, shard)
        return ran[1]((dy,))[index]


def _kernel(kind: str) -> Kernel:
    """The reference operator, or the one that communicates, on this rank's shards."""
    if kind in ("fork", "identity"):
        return lambda ctx, inputs, attrs: Explicit([inputs[0]], lambda grads: grads)

    def run(ctx: Context, inputs: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> Explicit:
        shard = _shard(ctx)
        dtypes = [t.dtype for t in ctx.spec.outputs]
        ran: Any
        if ctx.inner is not None:
            ran = _driven(lockstep_ops.KERNELS[kind](inputs, attrs, shard), ctx)
        else:
            with _ONE_TAPE:
                ran = operators.kernel(kind)(inputs, attrs, shard)
        outputs, pullback = ran

        def vjp(gradients: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
            if ctx.inner is not None:
                return list(_driven(pullback(gradients), ctx))
            with _ONE_TAPE:
                return list(pullback(gradients))

        return Explicit([np.asarray(y, d) for y, d in zip(outputs, dtypes, strict=True)], vjp)

    return run


def _by_input(kernel: Kernel) -> Kernel:
    def run(ctx: Context, inputs: Sequence[np.ndarray], attrs: Mapping[str, Any]) -> ByInput:
        result = kernel(ctx, inputs, attrs)
        assert isinstance(result, Explicit)
        return ByInput(result.outputs, lambda grads, index: result.vjp(grads)[index])

    return run


def _shard(ctx: Context) -> Shard:
    def starts(tensors: Sequence[Any], nds: Sequence[NdSbp]) -> tuple[Shape, ...]:
        return tuple(
            tuple(s.start for s in local_slices(t.shape, nd, ctx.mesh, ctx.rank))
            for t, nd in zip(tensors, nds, strict=True)
        )

    outs = starts(ctx.spec.outputs, ctx.planned.outs)
    return Shard(ctx.spec, starts(ctx.spec.inputs, ctx.planned.ins), outs)


def _driven(work: Any, ctx: Context) -> Any:
    """The result of what yields the all-reduces that it needs."""
    if not isinstance(work, GeneratorType):
        return work
    assert ctx.inner is not None
    answer = None
    while True:
        try:
            request = work.send(answer)
        except StopIteration as stop:
            return stop.value
        group = ctx.inner
        reduce = {
            "sum": group.all_reduce,
            "max": group.all_max,
            "before": group.sum_before,
            "after": partial(group.sum_before, after=True),
        }[request.how]
        answer = reduce(request.value)
