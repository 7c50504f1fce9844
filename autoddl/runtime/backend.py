"""What the runtime asks of a framework: 25 small functions, in the manner of einops' back ends.

Everything in `runtime/` but the back ends' own folders computes and communicates through a
`Backend`. An instance belongs to one rank of a job. Its parts are

    Tensors      make, cut, join and convert local tensors, and differentiate a kernel
    Collectives  collectives in a group of ranks, and messages between two ranks
    Training     parameters and optimizers
    Facts        what is known of the framework on this rank's device
    Kernels      how each operator kind runs on a shard (`kernel.py`)

A tensor has at least `shape`, `ndim`, `dtype`, `reshape(shape)`, `sum()`, the arithmetic operators
and `+=`, which changes it in place. Dtypes and devices have the names that graphs use ("float32",
"cpu").

The random numbers of dropout are the kernels' own: they come from `Context.random_seed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..graph.precision import PRECISIONS
from ..sbp.layout import Shape
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from .comm.beside import Beside

Tensor = Any  # the framework's tensor, local to this rank
Vjp = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]
OptimizerFn = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Facts:
    """What is known of a framework on this rank's device.

    framework:  its name and version, for messages
    device:     "cpu" or "cuda"
    tensor:     the class of its tensors
    precisions: those that it has kernels for
    sent_as:    dtype -> the one as which a message carries it, where that is another
    """

    framework: str
    device: str
    tensor: type
    precisions: tuple[str, ...]
    sent_as: Mapping[str, str]


@dataclass(frozen=True)
class Kernels:
    """The framework's kernels; their types are in `kernel.py`.

    operators:        operator kind -> `Kernel`
    by_input:         heavy kinds -> kernels that give each input's gradient by itself
    outputs:          (kind, output) -> `OutputKernel`, of that output alone
    opaque:           what tracing has found for an opaque operator -> `OpaqueFn`
    product_gradient: (a, b, attributes, dy, index) -> the gradient of input `index` of the matrix
                      product of a and b
    chained:          operator kind -> `Kernel` that leaves the gradient to the framework, of the
                      kinds that may be in a chain (`execution.chains`)
    in_place:         operator kind -> such a `Kernel` that may write into its first input; a bias
                      by itself takes 3.5 % of a step of a GPT on a CPU
    """

    operators: Mapping[str, Any]
    by_input: Mapping[str, Any]
    outputs: Mapping[tuple[str, int], Any]
    opaque: Callable[[Any], Any]
    product_gradient: Callable[[Tensor, Tensor, Mapping[str, Any], Tensor, int], Tensor]
    chained: Mapping[str, Any] = field(default_factory=dict)
    in_place: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """What an optimizer keeps of a parameter.

    tensors: name -> this rank's part, placed like the parameter ("exp_avg")
    options: name -> number or numbers, those of its parameter group ("lr"), and "state/NAME" -> a
             number that is kept of this parameter alone
    """

    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]

    @property
    def numbers(self) -> dict[str, Any]:
        """Name -> number, of those that are kept of this parameter alone."""
        named = ((name.partition("/"), value) for name, value in self.options.items())
        return {name: value for (_, of_state, name), value in named if of_state}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], group: Mapping[str, Any]) -> Kept:
        """With those options of a parameter group that are plain values."""
        plain = (bool, int, float, str, type(None))

        def is_plain(value: Any) -> bool:
            parts = value if isinstance(value, (tuple, list)) else [value]
            return all(isinstance(part, plain) for part in parts)

        return Kept(tensors, {name: x for name, x in group.items() if is_plain(x)})

    def put_options(self, group: Any) -> None:
        """Into the parameter group; what a file has made a list of was a tuple."""
        for name, value in self.options.items():
            if "/" not in name:
                group[name] = tuple(value) if isinstance(value, list) else value


class Optimizer(Protocol):
    """An optimizer of this rank's parameters.

    own:  what the user has made
    kind: how much state it keeps, as the planner names it
    """

    @property
    def own(self) -> Any: ...

    @property
    def kind(self) -> str: ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options that it was made with."""
        ...

    @property
    def groups(self) -> Sequence[Mapping[str, Any]]:
        """The options of its parameter groups, as they are now."""
        ...

    @property
    def steps(self) -> int:
        """How many it has done."""
        ...

    @steps.setter
    def steps(self, count: int) -> None: ...

    def step(self) -> None: ...

    def read(self, parameter: Any) -> Kept: ...

    def write(self, parameter: Any, kept: Kept) -> None:
        """Overwrite all that is kept of it; the options become those of its whole group."""
        ...


class Tensors(Protocol):
    """Local tensors."""

    def zeros(self, shape: Shape, dtype: str) -> Tensor: ...

    def from_numpy(self, array: np.ndarray) -> Tensor:
        """A tensor on this rank's device; on the CPU it shares the array's memory."""
        ...

    def to_numpy(self, x: Tensor) -> np.ndarray: ...

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """`x` in that dtype on this rank's device; `x` itself if it is that already."""
        ...

    def cat(self, parts: Sequence[Tensor], dim: int) -> Tensor: ...

    def narrow(self, x: Tensor, dim: int, start: int, length: int) -> Tensor:
        """`length` elements of dim `dim` from `start`; may share memory."""
        ...

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor: ...

    def contiguous(self, x: Tensor) -> Tensor:
        """`x` itself if its elements lie one after the other in its memory, else a copy."""
        ...

    def write(self, into: Tensor, x: Tensor) -> None:
        """Overwrite `into` in place."""
        ...

    def max_of_rows(self, x: Tensor) -> Tensor:
        """[k, n] -> [n], the elementwise maximum of the rows."""
        ...

    def held_bytes(self) -> int:
        """Bytes that the device has given away, on a CPU to this process: with freed blocks that

        the framework keeps for later tensors.
        """
        ...

    # ---- differentiation

    def no_grad(self) -> AbstractContextManager[Any]:
        """Nothing that runs inside is recorded for differentiation."""
        ...

    def detached(self, x: Tensor, watched: bool = False) -> Tensor:
        """`x` without its history, in the same memory; `watched`: recorded from here on."""
        ...

    def pull_back(self, watched: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Vjp:
        """The vector-Jacobian product of what has made `outputs` from the watched tensors.

        It gives one gradient for each entry of `watched`, and is called once.
        """
        ...


class Collectives(Protocol):
    """Communication. A `channel` is whatever the back end needs to know of a group of ranks.

    Buffers of collectives are flat and contiguous.
    """

    def channel(self, ranks: Sequence[int]) -> Any:
        """For collectives of the job's `ranks`, ascending, of which this rank is one."""
        ...

    def all_gather(self, channel: Any, x: Tensor) -> Tensor:
        """[n] on each rank -> [size * n], in rank order."""
        ...

    def reduce_scatter(self, channel: Any, x: Tensor) -> Tensor:
        """[size * n] on each rank -> the sum's piece [n] that belongs to this rank."""
        ...

    def all_reduce(self, channel: Any, x: Tensor, is_own: bool = False) -> Tensor:
        """[n] on each rank -> the sum [n], in the memory of x if `is_own` says that it may be."""
        ...

    def all_to_all(self, channel: Any, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Flat pieces of `sizes`, one for each rank -> the pieces from each.

        What comes from a rank has as many elements as what goes to it.
        """
        ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Rank `source`'s tensor of any shape and dtype, on every rank's device.

        The others give one of the same shape and dtype.
        """
        ...

    def send(self, x: Tensor, to: int, *, beside: bool = False) -> None:
        """Send a flat tensor, of a dtype that messages carry; `beside` computation if asked to.

        It must stay as it is until it has left (`wait`).
        """
        ...

    def receive(
        self, source: int, size: int, dtype: str, into: Tensor | None = None, *,
        beside: bool = False,
    ) -> Tensor:  # fmt: skip
        """[size] from rank `source`; the result may be there only when it is used."""
        ...

    def beside(self) -> AbstractContextManager[Any]:
        """What is asked for inside runs beside computation, in the order of communication."""
        ...

    def wait(self, x: Tensor | None = None) -> None:
        """Until `x` is there, by default until everything that this rank has asked for is done.

        Several threads may wait at once.
        """
        ...


class Training(Protocol):
    """Parameters and optimizers."""

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Any, Tensor]:
        """What the optimizer gets for a parameter placed as `nd`, and this rank's part of it.

        Both have the same memory, whose values are undefined.
        first: the job's rank that is the mesh's rank 0
        """
        ...

    def set_gradient(self, parameter: Any, gradient: Tensor | None) -> None:
        """Give a parameter this rank's part of its gradient; None frees it."""
        ...

    def gradient(self, parameter: Any) -> Tensor | None:
        """This rank's part of the gradient that a parameter has; it may share memory."""
        ...

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> Optimizer:
        """The user's optimizer; ValueError if it is none."""
        ...


class Backend(Tensors, Collectives, Training, Protocol):
    """One rank's framework. `rank` and `size` are those of the whole job.

    thread: where collectives run beside computation; None if the framework has a queue for them
    """

    rank: int
    size: int
    thread: Beside | None
    facts: Facts
    kernels: Kernels


def dtype_of(x: Tensor) -> str:
    """The name of a tensor's dtype; frameworks put their own before it."""
    return str(x.dtype).rpartition(".")[2]


def precisions_of(framework: Any, device: str) -> tuple[str, ...]:
    """Those in which a framework (its module) multiplies matrices: without it no model runs."""

    def multiplies(precision: str) -> bool:
        x = framework.zeros((2, 2), dtype=getattr(framework, precision), device=device)
        try:
            framework.matmul(x, x)
        except RuntimeError:
            return False
        return True

    return tuple(filter(multiplies, PRECISIONS))


def check_computes(precision: str, facts: Facts) -> None:
    """ValueError unless plans in `precision` can run on this rank's device."""
    if precision not in facts.precisions:
        raise ValueError(
            f"the plan computes in {precision}, for which {facts.framework} has no kernels on the "
            f"{facts.device.upper()} of this machine, not even of matmul; run the plan where the "
            f"devices compute in it, or plan with precision={facts.precisions[0]!r}"
        )
