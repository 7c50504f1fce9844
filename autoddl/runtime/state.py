"""Parameters and buffers on the mesh.

A parameter is what the framework's optimizers take, with the plan's placement
(`Backend.parameter`); a buffer is this rank's part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import Op
from ..sbp.layout import Shape, local_slices
from ..sbp.placement import NdSbp
from .backend import Tensor, dtype_of
from .comm.groups import Groups
from .comm.redistribute import from_broadcast, prepare, to_broadcast
from .execution.check import check_tensor


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

    whole:     the user's own tensors; those that the graph does not read stay there
    stored:    what the graph reads
    counters:  BatchNorm's numbers of batches seen
    apart:     buffers whose replicas differ, along mesh axes; they mean the mean of the replicas
    gradients: this rank's parts of the parameters' gradients, until the optimizer gets them
    """

    groups: Groups
    whole: Mapping[str, Tensor]
    stored: dict[str, Stored] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)
    apart: dict[str, tuple[int, ...]] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def add_parameter(self, name: str, whole: Tensor, nd: NdSbp, trained: bool) -> Any:
        """Place the value as `nd`; gives what the optimizer takes."""
        backend, shape, dtype = self.groups.backend, tuple(whole.shape), dtype_of(whole)
        parameter, local = backend.parameter(
            shape, dtype, nd, self.groups.mesh, self.groups.first, trained
        )
        self.stored[name] = Stored(shape, dtype, nd, local, parameter)
        backend.write(local, shard(whole, nd, self.groups))
        return parameter

    def add_buffer(self, name: str, whole: Tensor, nd: NdSbp) -> None:
        """Place the value as `nd`."""
        local = self._copy(shard(whole, nd, self.groups))
        self.stored[name] = Stored(tuple(whole.shape), dtype_of(whole), nd, local)

    def get(self, name: str) -> Tensor:
        """The whole value of a tensor. Ranks call it together."""
        backend = self.groups.backend
        if name not in self.stored:
            return self._copy(self.unread(name))
        self._bring_together(name)
        local = backend.detached(self.stored[name].local)
        gathered = self.gather(name, local)
        return self._copy(gathered) if gathered is local else gathered

    def gather(self, name: str, local: Tensor) -> Tensor:
        """The whole of what is placed like a tensor of the model. Ranks call it together."""
        stored = self.stored[name]
        return prepare(to_broadcast(stored.nd), stored.shape, stored.nd, self.groups)(local)

    def set(self, name: str, whole: Tensor) -> None:
        """Overwrite the value, in the user's model if the graph does not read it."""
        if name in self.stored:
            self.set_local(name, shard(whole, self.stored[name].nd, self.groups))
        else:
            self.groups.backend.write(self.unread(name), whole)

    def set_local(self, name: str, local: Tensor) -> None:
        """Overwrite this rank's part of a value that the graph reads."""
        self.apart.pop(name, None)
        self.groups.backend.write(self.stored[name].local, local)

    def shape(self, name: str) -> Shape:
        """The whole shape of a tensor."""
        if name in self.stored:
            return self.stored[name].shape
        return tuple(self.unread(name).shape)

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

    def set_gradient(self, name: str, gradient: Tensor, is_own: bool) -> None:
        """This rank's part of a parameter's gradient, placed like the parameter.

        is_own: nobody else has its memory; else it is copied, as hooks may change it in place
        """
        cast = self.groups.backend.cast(gradient, self.stored[name].dtype)
        self.gradients[name] = cast if is_own or cast is not gradient else self._copy(cast)

    def give_gradients(self) -> None:
        """Hand the gradients over to the optimizer, one by one."""
        while self.gradients:
            name, gradient = self.gradients.popitem()
            self.groups.backend.set_gradient(self.stored[name].parameter, gradient)

    def take_gradients(self) -> None:
        """Take back what `give_gradients` has handed over and others may have changed."""
        for name, stored in self.stored.items():
            if stored.parameter is not None:
                gradient = self.groups.backend.gradient(stored.parameter)
                if gradient is not None:
                    self.gradients[name] = gradient

    def forget_gradients(self) -> None:
        """Free the last step's gradients, while this one's are not there yet."""
        self.gradients.clear()
        for stored in self.stored.values():
            if stored.parameter is not None:
                self.groups.backend.set_gradient(stored.parameter, None)

    def count_batch(self, module: str) -> None:
        """One more batch has gone through the BatchNorm at path `module`."""
        name = f"{module}.num_batches_tracked" if module else "num_batches_tracked"
        if name in self.counters or name in self.whole:  # a functional BatchNorm counts nothing
            self.counters[name] = self.unread(name) + 1

    def check_parameters(self) -> None:
        """AssertionError unless every parameter is placed as planned, and replicas are equal."""
        for name, stored in self.stored.items():
            if stored.parameter is not None:
                what = f"parameter {name}"
                check_tensor(stored.local, what, stored.shape, stored.nd, self.groups)

    def unread(self, name: str) -> Tensor:
        """A tensor that the graph does not read."""
        return self.counters.get(name, self.whole.get(name))

    def _copy(self, x: Tensor) -> Tensor:
        copy = self.groups.backend.zeros(tuple(x.shape), dtype_of(x))
        self.groups.backend.write(copy, x)
        return copy


def has_turn(nd: NdSbp, groups: Groups, turn: int) -> bool:
    """Whether of the ranks that have the same part of a tensor placed as `nd` it is this one's."""
    assert not nd.has_partial
    own, copies, coords = 0, 1, groups.mesh.coords(groups.rank)
    for placement, axis, coord in zip(nd, groups.mesh.axes, coords, strict=True):
        if not placement.is_split:
            own, copies = own * axis.extent + coord, copies * axis.extent
    return own == turn % copies


def shard(whole: Tensor, nd: NdSbp, groups: Groups) -> Tensor:
    """This rank's part of a whole local tensor under `nd`, which is not Partial."""
    assert not nd.has_partial
    backend = groups.backend
    for dim, piece in enumerate(local_slices(tuple(whole.shape), nd, groups.mesh, groups.rank)):
        if piece.stop - piece.start != whole.shape[dim]:
            whole = backend.narrow(whole, dim, piece.start, piece.stop - piece.start)
    return backend.contiguous(whole)
