"""Parameters and buffers on the mesh.

A parameter is a OneFlow global tensor with the plan's placement, so that optimisers and their state
need nothing special; neighbouring mesh axes with the same label are merged, as fewer axes are
cheaper and better supported. A buffer is this rank's local part of it. Both start with rank 0's
values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oneflow as flow

from ...graph.graph import Op
from ...sbp.layout import Shape, local_slices
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp, Placement
from .detach import detached
from .groups import Groups
from .redistribute import prepare
from .routes import from_broadcast, to_broadcast


@dataclass
class Stored:
    """A tensor of the model on this rank: global shape, placement, and the local part.

    `parameter` is the global tensor whose memory `local` is; None for a buffer.
    """

    shape: Shape
    nd: NdSbp
    local: flow.Tensor
    parameter: Any = None


@dataclass
class ModelState:
    """All parameters and buffers of a model, by their dotted names.

    model:    holds the tensors that the graph does not read; those stay there, whole
    stored:   what the graph reads
    counters: BatchNorm's numbers of batches seen
    apart:    buffers whose replicas differ, along mesh axes; they mean the mean of the replicas
    """

    groups: Groups
    model: flow.nn.Module | None = None
    stored: dict[str, Stored] = field(default_factory=dict)
    counters: dict[str, flow.Tensor] = field(default_factory=dict)
    apart: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add_parameter(self, name: str, value: flow.Tensor, nd: NdSbp) -> Any:
        """Place rank 0's `value` as `nd`; gives the (global) parameter."""
        shape = tuple(value.shape)
        parameter = _empty_parameter(shape, value.dtype, nd, self.groups)
        parameter.requires_grad_(value.requires_grad)
        stored = Stored(shape, nd, _local_part(parameter), parameter)
        self.stored[name] = stored
        self._write(stored, from_rank_0(detached(value), self.groups))
        return parameter

    def add_buffer(self, name: str, value: flow.Tensor, nd: NdSbp) -> None:
        """Place rank 0's `value` as `nd`."""
        shape = tuple(value.shape)
        whole = from_rank_0(detached(value), self.groups)
        local = shard(whole, nd, self.groups).clone()
        self.stored[name] = Stored(shape, nd, local)

    def get(self, name: str) -> flow.Tensor:
        """The whole value of a tensor, as a local tensor on every rank. Ranks call it together."""
        if name not in self.stored:
            return detached(self._elsewhere(name)).clone()
        self._bring_together(name)
        stored = self.stored[name]
        steps = to_broadcast(stored.nd)
        gathered = prepare(steps, stored.shape, stored.nd, self.groups)(detached(stored.local))
        return gathered if steps else gathered.clone()

    def set(self, name: str, value: flow.Tensor) -> None:
        """Overwrite with rank 0's whole `value`. Ranks call it together."""
        whole = from_rank_0(detached(value), self.groups)
        self.apart.pop(name, None)
        if name in self.stored:
            self._write(self.stored[name], whole)
        else:
            with flow.no_grad():
                self._elsewhere(name).copy_(whole)

    def shape(self, name: str) -> Shape:
        """The whole shape of a tensor."""
        if name in self.stored:
            return self.stored[name].shape
        return tuple(self._elsewhere(name).shape)

    def update(self, name: str, value: flow.Tensor, nd: NdSbp, apart: tuple[int, ...] = ()) -> None:
        """Overwrite a buffer with `value`, this rank's part under `nd`, where it is then kept.

        apart: mesh axes along which the ranks' values differ where `nd` says that they do not
        """
        stored = self.stored[name]
        stored.local, stored.nd = detached(value), nd
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

    def local(self, name: str, nd: NdSbp) -> flow.Tensor:
        """This rank's part under `nd`. Ranks call it together: a buffer may have to travel."""
        stored = self.stored[name]
        if nd != stored.nd:
            self._bring_together(name)
            steps = (*to_broadcast(stored.nd), *from_broadcast(nd))
            stored.local = prepare(steps, stored.shape, stored.nd, self.groups)(stored.local)
            stored.nd = nd
        return stored.local

    def forget_gradients(self) -> None:
        """Free the last step's gradients, while this one's are not there yet."""
        for stored in self.stored.values():
            if stored.parameter is not None:
                stored.parameter.grad = None

    def gradients(self) -> list[flow.Tensor]:
        """This rank's parts of the gradients that are set, in the memory of the gradients."""
        found = [s.parameter.grad for s in self.stored.values() if s.parameter is not None]
        return [_local_part(gradient) for gradient in found if gradient is not None]

    def count_batch(self, module: str) -> None:
        """One more batch has gone through the BatchNorm at path `module`."""
        name = f"{module}.num_batches_tracked" if module else "num_batches_tracked"
        with contextlib.suppress(KeyError):  # a functional BatchNorm counts nothing
            self.counters[name] = self._elsewhere(name) + 1

    def check_parameters(self) -> None:
        """AssertionError unless every parameter still has the plan's placement."""
        for name, stored in self.stored.items():
            if stored.parameter is not None and stored.parameter.is_global:
                _, labels = merged_axes(stored.shape, stored.nd, self.groups.mesh)
                found = stored.parameter.sbp
                assert tuple(found) == tuple(flow_sbp(labels)), (
                    f"parameter {name} is placed as {found}, planned is {stored.nd}"
                )

    def _elsewhere(self, name: str) -> flow.Tensor:
        """A tensor that the graph does not read. KeyError if there is none."""
        if name in self.counters:
            return self.counters[name]
        model = self.model
        if model is None:
            raise KeyError(name)
        path, _, key = name.rpartition(".")
        owner = dict(model.named_modules())[path]
        return {**owner._parameters, **owner._buffers}[key]

    def _write(self, stored: Stored, whole: flow.Tensor) -> None:
        with flow.no_grad():
            stored.local.copy_(shard(whole, stored.nd, self.groups))


def from_rank_0(value: flow.Tensor, groups: Groups) -> flow.Tensor:
    """Rank 0's `value` on every rank: the sum of it and the others' zeros."""
    world = groups.along(range(groups.mesh.num_axes))
    local = value.to(groups.device)
    return world.all_reduce(local if groups.rank == 0 else flow.zeros_like(local))


def shard(whole: flow.Tensor, nd: NdSbp, groups: Groups) -> flow.Tensor:
    """This rank's part of a whole local tensor under `nd`, which is not Partial."""
    assert not nd.has_partial
    for dim, piece in enumerate(local_slices(tuple(whole.shape), nd, groups.mesh, groups.rank)):
        if piece.stop - piece.start != whole.shape[dim]:
            whole = whole.narrow(dim, piece.start, piece.stop - piece.start)
    return whole.contiguous()


def merged_axes(shape: Shape, nd: NdSbp, mesh: Mesh) -> tuple[list[int], list[Placement]]:
    """Extents and labels with neighbouring equal labels merged, where the split stays the same.

    10 rows over (S0, S0) on 2 x 2 are 3, 2, 3, 2, over S0 on 4 they are 3, 3, 2, 2: not merged.
    """
    extents: list[int] = []
    labels: list[Placement] = []
    for extent, label in zip(mesh.extents, nd, strict=True):
        same = bool(labels) and labels[-1] == label
        if same and label.is_split:
            same = shape[label.dim] % (mesh.extent(nd.axes_of(label))) == 0
        if same:
            extents[-1] *= extent
        else:
            extents.append(extent)
            labels.append(label)
    return extents, labels


def flow_sbp(labels: Sequence[Placement]) -> list[Any]:
    """OneFlow's objects for `labels`."""
    kinds = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    return [flow.sbp.split(p.dim) if p.is_split else kinds[str(p)] for p in labels]


def _empty_parameter(shape: Shape, dtype: Any, nd: NdSbp, groups: Groups) -> Any:
    if groups.mesh.size == 1:
        return flow.nn.Parameter(flow.empty(shape, dtype=dtype, device=groups.device))
    extents, labels = merged_axes(shape, nd, groups.mesh)
    ranks = (groups.first + np.arange(groups.mesh.size)).reshape(extents).tolist()
    placement = flow.placement(groups.device, ranks=ranks)
    return flow.nn.Parameter(
        flow.empty(shape, dtype=dtype, placement=placement, sbp=flow_sbp(labels))
    )


def _local_part(parameter: Any) -> flow.Tensor:
    """The local tensor that shares the parameter's memory."""
    with flow.no_grad():
        return parameter.to_local() if parameter.is_global else parameter.detach()


def set_gradient(stored: Stored, gradient: flow.Tensor) -> None:
    """Give the parameter this rank's part of its gradient, placed like the parameter."""
    parameter = stored.parameter
    with flow.no_grad():
        if parameter.grad is None:
            parameter.grad = flow.zeros_like(parameter)
        _local_part(parameter.grad).copy_(gradient)


def state_names(model: flow.nn.Module) -> dict[str, str]:
    """Key of the model's `state_dict` -> the first name of that tensor; tied tensors share one."""
    first: dict[flow.Tensor, str] = {}
    return {k: first.setdefault(t, k) for k, t in model.state_dict(keep_vars=True).items()}
