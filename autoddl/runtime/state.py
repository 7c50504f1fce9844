"""Parameters and buffers on the mesh.

A parameter is what the framework's optimizers take, with the plan's placement
(`Backend.parameter`); a buffer is this rank's part of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import Op
from ..sbp.layout import Shape, local_slices
from ..sbp.placement import NdSbp
from .backend import Backend, Tensor
from .comm.groups import Groups
from .comm.redistribute import from_broadcast, prepare, to_broadcast


@dataclass
class Stored:
    """A tensor of the model on this rank: global shape, dtype, placement, and the local part.

    `parameter` is what the optimizer has, and `local` its memory; None for a buffer.
    """

    shape: Shape
    dtype: str
    nd: NdSbp
    local: Tensor
    parameter: Any = None


@dataclass
class ModelState:
    """All parameters and buffers of a model, by their dotted names.

    Whole values come and go as local tensors that are equal on all ranks.

    model:    holds the tensors that the graph does not read; those stay there, whole
    stored:   what the graph reads
    counters: BatchNorm's numbers of batches seen
    apart:    buffers whose replicas differ, along mesh axes; they mean the mean of the replicas
    """

    groups: Groups
    model: Any = None
    stored: dict[str, Stored] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)
    apart: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add_parameter(self, name: str, whole: Tensor, nd: NdSbp, trained: bool) -> Any:
        """Place the value as `nd`; gives what the optimizer takes."""
        backend, shape, dtype = self.groups.backend, tuple(whole.shape), self._dtype(whole)
        parameter, local = backend.parameter(
            shape, dtype, nd, self.groups.mesh, self.groups.first, trained
        )
        self.stored[name] = Stored(shape, dtype, nd, local, parameter)
        backend.write(local, shard(whole, nd, self.groups))
        return parameter

    def add_buffer(self, name: str, whole: Tensor, nd: NdSbp) -> None:
        """Place the value as `nd`."""
        local = self.groups.backend.clone(shard(whole, nd, self.groups))
        self.stored[name] = Stored(tuple(whole.shape), self._dtype(whole), nd, local)

    def get(self, name: str) -> Tensor:
        """The whole value of a tensor. Ranks call it together."""
        backend = self.groups.backend
        if name not in self.stored:
            return backend.clone(backend.detached(self._elsewhere(name)))
        self._bring_together(name)
        stored = self.stored[name]
        steps = to_broadcast(stored.nd)
        gather = prepare(steps, stored.shape, stored.nd, self.groups)
        gathered = gather(backend.detached(stored.local))
        return gathered if steps else backend.clone(gathered)

    def set(self, name: str, whole: Tensor) -> None:
        """Overwrite the value, where the part or the user's model holds it."""
        backend = self.groups.backend
        self.apart.pop(name, None)
        if name in self.stored:
            stored = self.stored[name]
            backend.write(stored.local, shard(whole, stored.nd, self.groups))
        elif self.model is not None:
            backend.write(self._elsewhere(name), whole)

    def shape(self, name: str) -> Shape:
        """The whole shape of a tensor."""
        if name in self.stored:
            return self.stored[name].shape
        return tuple(self._elsewhere(name).shape)

    def update(self, name: str, value: Tensor, nd: NdSbp, apart: tuple[int, ...] = ()) -> None:
        """Overwrite a buffer with `value`, this rank's part under `nd`, where it is then kept.

        apart: mesh axes along which the ranks' values differ where `nd` says that they do not
        """
        stored = self.stored[name]
        stored.local, stored.nd = self.groups.backend.detached(value), nd
        if apart:
            self.apart[name] = tuple(sorted({*apart, *self.apart.get(name, ())}))

    def is_apart(self, buffer: Op) -> bool:
        """True if the replicas of what a `buffer` operator stands for differ."""
        return buffer.attrs["name"] in self.apart

    def settle(self) -> None:
        """Bring together what is apart. Ranks call it together."""
        for name in sorted(self.apart):
            self._bring_together(name)

    def _bring_together(self, name: str) -> None:
        axes = self.apart.pop(name, ())
        if axes:
            stored, group = self.stored[name], self.groups.along(axes)
            stored.local = group.all_reduce(stored.local) / group.size

    def local(self, name: str, nd: NdSbp) -> Tensor:
        """This rank's part under `nd`. Ranks call it together: a buffer may have to travel."""
        stored = self.stored[name]
        if nd != stored.nd:
            self._bring_together(name)
            steps = (*to_broadcast(stored.nd), *from_broadcast(nd))
            stored.local = prepare(steps, stored.shape, stored.nd, self.groups)(stored.local)
            stored.nd = nd
        return stored.local

    def set_gradient(self, name: str, gradient: Tensor) -> None:
        """Give a parameter this rank's part of its gradient, placed like the parameter."""
        stored, backend = self.stored[name], self.groups.backend
        backend.set_gradient(stored.parameter, backend.cast(gradient, stored.dtype))

    def forget_gradients(self) -> None:
        """Free the last step's gradients, while this one's are not there yet."""
        for stored in self.stored.values():
            if stored.parameter is not None:
                self.groups.backend.set_gradient(stored.parameter, None)

    def gradients(self) -> list[Tensor]:
        """This rank's parts of the gradients that are set, in the memory of the gradients."""
        parameters = [s.parameter for s in self.stored.values() if s.parameter is not None]
        found = map(self.groups.backend.gradient, parameters)
        return [gradient for gradient in found if gradient is not None]

    def count_batch(self, module: str) -> None:
        """One more batch has gone through the BatchNorm at path `module`."""
        name = f"{module}.num_batches_tracked" if module else "num_batches_tracked"
        with contextlib.suppress(KeyError):  # a functional BatchNorm counts nothing
            self.counters[name] = self._elsewhere(name) + 1

    def check_parameters(self) -> None:
        """AssertionError unless every parameter still has the plan's placement."""
        for name, stored in self.stored.items():
            assert stored.parameter is None or self.groups.backend.is_placed(
                stored.parameter, stored.shape, stored.nd, self.groups.mesh
            ), f"parameter {name} is not placed as planned, {stored.nd}"

    def _elsewhere(self, name: str) -> Tensor:
        """A tensor that the graph does not read. KeyError if there is none."""
        if name in self.counters:
            return self.counters[name]
        return self.groups.backend.model_tensor(self.model, name)

    def _dtype(self, x: Tensor) -> str:
        return self.groups.backend.dtype(x)


def shard(whole: Tensor, nd: NdSbp, groups: Groups) -> Tensor:
    """This rank's part of a whole local tensor under `nd`, which is not Partial."""
    assert not nd.has_partial
    backend = groups.backend
    for dim, piece in enumerate(local_slices(tuple(whole.shape), nd, groups.mesh, groups.rank)):
        if piece.stop - piece.start != whole.shape[dim]:
            whole = backend.narrow(whole, dim, piece.start, piece.stop - piece.start)
    return backend.contiguous(whole)


def share(value: Tensor, source: int, backend: Backend) -> Tensor:
    """The value that the job's rank `source` has, on every rank of the job."""
    local = backend.to_device(backend.detached(value))
    dtype = backend.dtype(local)
    flat = backend.cast(backend.contiguous(local).reshape(-1), backend.carrier(dtype))
    return backend.cast(backend.broadcast(backend.clone(flat), source), dtype).reshape(value.shape)
