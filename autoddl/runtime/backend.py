"""What the runtime asks of a framework: small functions, in the manner of einops' back ends.

Everything in `runtime/` but the back ends' own folders computes and communicates through a
`Backend`. An instance belongs to one rank of a job. Its three parts are

    Tensors      make, cut, join and convert local tensors, and differentiate a kernel
    Collectives  collectives in a group of ranks, and messages between two ranks
    Training     kernels, parameters, optimizers, and the user's own model

A tensor has at least `shape`, `ndim`, `reshape(shape)`, the arithmetic operators and `+=`, which
changes it in place. Dtypes and devices have the names that graphs use ("float32", "cpu").

The random numbers of dropout are the kernels' own: they come from `Context.random_seed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from ..sbp.layout import Shape
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp

Tensor = Any  # the framework's tensor, local to this rank
Vjp = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]
OptimizerFn = Callable[[list[Any]], Any]


class Tensors(Protocol):
    """Local tensors."""

    device: str

    def zeros(self, shape: Shape, dtype: str) -> Tensor: ...

    def full_like(self, x: Tensor, value: float) -> Tensor: ...

    def from_numpy(self, array: np.ndarray) -> Tensor:
        """A tensor on this rank's device; on the CPU it shares the array's memory."""
        ...

    def to_numpy(self, x: Tensor) -> np.ndarray: ...

    def to_device(self, x: Tensor) -> Tensor: ...

    def is_tensor(self, x: object) -> bool: ...

    def dtype(self, x: Tensor) -> str: ...

    def nbytes(self, x: Tensor) -> int: ...

    def cast(self, x: Tensor, dtype: str) -> Tensor: ...

    def cat(self, parts: Sequence[Tensor], dim: int) -> Tensor: ...

    def narrow(self, x: Tensor, dim: int, start: int, length: int) -> Tensor:
        """`length` elements of dim `dim` from `start`; may share memory."""
        ...

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor: ...

    def contiguous(self, x: Tensor) -> Tensor:
        """`x` itself if its elements lie one after the other in its memory, else a copy."""
        ...

    def clone(self, x: Tensor) -> Tensor: ...

    def write(self, into: Tensor, x: Tensor) -> None:
        """Overwrite `into` in place."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """Multiply in place."""
        ...

    def any_not_finite(self, tensors: Sequence[Tensor]) -> Tensor:
        """[1] of float32: 1 if an element is infinite or no number, else 0."""
        ...

    # ---- differentiation

    def no_grad(self) -> AbstractContextManager[Any]:
        """Nothing that runs inside is recorded for differentiation."""
        ...

    def detached(self, x: Tensor) -> Tensor:
        """`x` without its history, in the same memory."""
        ...

    def watched(self, x: Tensor) -> Tensor:
        """`x` cut off from its history, and recorded from here on."""
        ...

    def pull_back(self, watched: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Vjp:
        """The vector-Jacobian product of what has made `outputs` from the watched tensors.

        It gives one gradient for each entry of `watched`, and is called once.
        """
        ...


class Collectives(Protocol):
    """Communication. A `channel` is whatever the back end needs to know of a group of ranks.

    Buffers of collectives are flat and contiguous. `rank` and `size` are those of the whole job.
    """

    rank: int
    size: int

    def channel(self, ranks: Sequence[int]) -> Any:
        """For collectives of the job's `ranks`, ascending, of which this rank is one."""
        ...

    def all_gather(self, channel: Any, x: Tensor) -> Tensor:
        """[n] on each rank -> [size * n], in rank order."""
        ...

    def reduce_scatter(self, channel: Any, x: Tensor) -> Tensor:
        """[size * n] on each rank -> the sum's piece [n] that belongs to this rank."""
        ...

    def all_reduce(self, channel: Any, x: Tensor) -> Tensor:
        """[n] on each rank -> the sum [n]."""
        ...

    def all_to_all(self, channel: Any, x: Tensor) -> Tensor:
        """[size, n]: row j is for rank j -> [size, n]: row i is from rank i."""
        ...

    def amax(self, x: Tensor) -> Tensor:
        """[k, n] -> [n], the elementwise maximum of the rows on this rank."""
        ...

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """Rank `source`'s flat `x` on every rank of the job; `x` may be overwritten."""
        ...

    def as_message(self, x: Tensor) -> Tensor:
        """Flat `x` in memory from which it can be sent."""
        ...

    def send(self, x: Tensor, to: int) -> None: ...

    def receive(self, source: int, size: int, dtype: str, into: Tensor | None = None) -> Tensor:
        """[size] from rank `source`; the result may be there only when it is used."""
        ...

    def carrier(self, dtype: str) -> str:
        """The dtype as which `send` can carry this one."""
        ...

    def beside_compute(self, overlap: bool) -> Callable[[], AbstractContextManager[Any]]:
        """Makes contexts in which messages run beside computation, if they are to `overlap`."""
        ...

    def wait(self) -> None:
        """Until everything that this rank has asked for is done."""
        ...

    def at_exit(self, call: Callable[[], None]) -> None:
        """Have `call` run when this rank ends."""
        ...


class Training(Protocol):
    """Kernels, parameters and optimizers."""

    def kernels(self, by_input: bool) -> Mapping[str, Any]:
        """Operator kind -> its kernel (`kernel.Kernel`).

        by_input: heavy operators' kernels give each input's gradient by itself
        """
        ...

    def opaque_kernel(self, call: Any) -> Any:
        """The kernel (`kernel.OpaqueFn`) of what tracing has found for an opaque operator."""
        ...

    def output_kernel(self, kind: str, output: int) -> Any:
        """The kernel of one output of an operator kind (`kernel.OutputKernel`)."""
        ...

    def product_gradient(
        self, a: Tensor, b: Tensor, attrs: Mapping[str, Any], dy: Tensor, index: int
    ) -> Tensor:
        """The gradient of input `index` of a matrix product of `a` and `b`."""
        ...

    def check_precision(self, precision: str) -> None:
        """ValueError unless this machine's devices can run plans in `precision`."""
        ...

    def parameter(
        self, shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, trained: bool
    ) -> tuple[Any, Tensor]:
        """What the optimizer gets for a parameter placed as `nd`, and this rank's part of it.

        Both have the same memory, whose values are undefined.
        first: the job's rank that is the mesh's rank 0
        """
        ...

    def gradient(self, parameter: Any) -> Tensor | None:
        """This rank's part of a parameter's gradient, in the memory of the gradient."""
        ...

    def set_gradient(self, parameter: Any, gradient: Tensor | None) -> None:
        """Give a parameter this rank's part of its gradient; None frees it."""
        ...

    def is_placed(self, parameter: Any, shape: Shape, nd: NdSbp, mesh: Mesh) -> bool:
        """True if the parameter still has the placement with which it was made."""
        ...

    def optimizer(self, make: OptimizerFn, parameters: list[Any]) -> Any:
        """The user's optimizer, which has a method `step`; ValueError if it is none."""
        ...

    def optimizer_kind(self, make: OptimizerFn) -> str:
        """How much state the user's optimizer keeps, as the planner names it."""
        ...

    def state_names(self, model: Any) -> Mapping[str, str]:
        """Key of the model's `state_dict` -> the first name of that tensor; tied ones share it."""
        ...

    def model_tensor(self, model: Any, name: str) -> Tensor:
        """The user's model's own tensor of that dotted name. KeyError if there is none."""
        ...


class Backend(Tensors, Collectives, Training, Protocol):
    """One rank's framework."""
