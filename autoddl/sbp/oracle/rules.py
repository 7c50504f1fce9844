"""The proof of operator signatures; see the package's docstring for the equations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..layout import Shape, TensorSpec, check_fits, is_even, local_shape, local_slices
from ..mesh import Mesh
from ..placement import NdSbp, Placement
from ..signature import Attrs, Inner, LocalAttrsFn, OpSpec, Signature, keep_attrs
from .devices import (
    Array,
    Disproved,
    Lockstep,
    assemble,
    close,
    run_alone,
    run_in_lockstep,
    scatter,
)

Grads = Sequence[Array | None]
Pullback = Callable[[Grads], "Grads | Lockstep[Grads]"]


@dataclass(frozen=True)
class Shard:
    """Where a device's tensors begin in the global ones. `op` is the global operator."""

    op: OpSpec
    in_starts: tuple[Shape, ...]
    out_starts: tuple[Shape, ...]


_STREAM = 0x5B9  # any number: keeps these draws apart from others of the same seed
Ran = tuple[Sequence[Array], Pullback]
Kernel = Callable[[Sequence[Array], Attrs, Shard], "Ran | Lockstep[Ran]"]


def prove(
    op: OpSpec,
    mesh: Mesh,
    signatures: Sequence[Signature],
    kernel: Kernel,
    inputs: Sequence[Array],
    *,
    local_attrs: LocalAttrsFn = keep_attrs,
    whole: Kernel | None = None,
    seed: int = 0,
) -> None:
    """Check one signature per mesh axis against the operator on one device.

    kernel: runs on the shards; whole: runs on one device, the same kernel if not given
    inputs: the whole inputs, float ones in float64
    Raises Disproved if an output, a gradient or a collective is not as the signatures say, and
    ValueError if they do not fit the mesh or the tensors.
    """
    # A stream of its own: summands that repeat the numbers of an input can hide a wrong signature.
    rng = np.random.default_rng((seed, _STREAM))
    placed = Placed(op, mesh, tuple(signatures))
    outs, pullback = run_alone((whole or kernel)(inputs, op.attrs, placed.shard(None)))

    shards = [scatter(x, nd, mesh, rng) for x, nd in zip(inputs, placed.ins, strict=True)]
    programs = [
        kernel(
            [parts[rank] for parts in shards],
            local_attrs(op, placed.in_shapes(rank), placed.out_shapes(rank)),
            placed.shard(rank),
        )
        for rank in range(mesh.size)
    ]
    ran, reduced = run_in_lockstep(programs, mesh, placed.inner_axes)
    _check_collectives(placed, reduced, "forward")
    for i, nd in enumerate(placed.outs):
        _compare([np.asarray(o[i]) for o, _ in ran], nd, mesh, outs[i], f"output {i} of {placed}")
    if any(nd is not None for nd in placed.grad_ins):
        _prove_backward(placed, [back for _, back in ran], pullback, outs, rng)


def _prove_backward(
    placed: Placed,
    local: Sequence[Pullback],
    whole: Pullback,
    outs: Sequence[Array],
    rng: np.random.Generator,
) -> None:
    mesh = placed.mesh
    grads: list[Array | None] = []
    cuts: list[Sequence[Array | None]] = []
    for nd, out in zip(placed.grad_outs, outs, strict=True):
        if nd is None:
            grads.append(None)
            cuts.append([None] * mesh.size)
        else:
            grad = rng.standard_normal(np.shape(out))
            grads.append(grad)
            cuts.append(scatter(grad, nd, mesh, rng))
    expected = run_alone(whole(grads))
    programs = [back([cut[rank] for cut in cuts]) for rank, back in enumerate(local)]
    given, reduced = run_in_lockstep(programs, mesh, placed.inner_axes)
    _check_collectives(placed, reduced, "backward")
    for i, nd in enumerate(placed.grad_ins):
        if nd is None:
            continue
        what, total = f"the gradient of input {i} of {placed}", expected[i]
        parts = [np.asarray(grad[i]) for grad in given if grad[i] is not None]
        if total is None or len(parts) < mesh.size:
            raise Disproved(f"{what} is stated, but the kernel gives none")
        _compare(parts, nd, mesh, total, what)


def _compare(parts: Sequence[Array], nd: NdSbp, mesh: Mesh, whole: Array, what: str) -> None:
    try:
        assembled = assemble(parts, nd, mesh, np.shape(whole))
    except Disproved as error:
        raise Disproved(f"{what}: {error}") from None
    if not close(assembled, whole):
        difference = float(np.abs(assembled - whole).max())
        raise Disproved(f"{what}: placed as {nd} it differs from one device by {difference:.3g}")


def _check_collectives(placed: Placed, reduced: Sequence[Sequence[Array]], way: str) -> None:
    """The all-reduces must be as many and as large as `Inner` states."""
    inner = placed.inner
    stated = getattr(inner, way) if inner else 0
    if len(reduced) != stated:
        raise Disproved(f"{placed}: {len(reduced)} all-reduces {way}, {stated} are stated")
    for collective in reduced:
        for rank, value in enumerate(collective):
            assert inner is not None
            local = placed.in_shapes(rank)[inner.tensor]
            size = math.prod(n for d, n in enumerate(local) if d not in inner.dims)
            if np.size(value) != size:
                raise Disproved(
                    f"{placed}: rank {rank} all-reduces {np.size(value)} elements {way}, "
                    f"{size} are stated"
                )


def fits(op: OpSpec, mesh: Mesh, signatures: Sequence[Signature]) -> bool:
    """True if every split divides its dim evenly and every `limit` holds."""
    placed = Placed(op, mesh, tuple(signatures))
    tensors, nds = (*op.inputs, *op.outputs), (*placed.ins, *placed.outs)
    limits = {s: [a for a, other in enumerate(signatures) if other == s] for s in signatures}
    return all(is_even(t.shape, nd, mesh) for t, nd in zip(tensors, nds, strict=True)) and all(
        s.limit is None or s.limit % math.prod(mesh.units[a] for a in axes) == 0
        for s, axes in limits.items()
    )


@dataclass(frozen=True)
class Placed:
    """An operator with one signature per mesh axis, read as placements per tensor."""

    op: OpSpec
    mesh: Mesh
    signatures: tuple[Signature, ...]

    def __post_init__(self) -> None:
        if len(self.signatures) != self.mesh.num_axes:
            raise ValueError(
                f"the mesh {self.mesh} has {self.mesh.num_axes} axes, "
                f"but {len(self.signatures)} signatures are given; give one per axis"
            )
        tensors = (*self.op.inputs, *self.op.outputs)
        for tensor, nd in zip(tensors, (*self.ins, *self.outs), strict=True):
            check_fits(tensor.shape, nd, self.mesh)
        if len({s.inner for s in self.signatures if s.inner}) > 1:
            raise ValueError(f"{self}: the signatures state different inner collectives")

    @property
    def ins(self) -> tuple[NdSbp, ...]:
        rows, count = [s.ins for s in self.signatures], len(self.op.inputs)
        return tuple(NdSbp(tuple(row[i] for row in rows)) for i in range(count))

    @property
    def outs(self) -> tuple[NdSbp, ...]:
        rows, count = [s.outs for s in self.signatures], len(self.op.outputs)
        return tuple(NdSbp(tuple(row[i] for row in rows)) for i in range(count))

    @property
    def grad_ins(self) -> tuple[NdSbp | None, ...]:
        """None where an axis states no gradient."""
        rows, count = [s.grad_ins for s in self.signatures], len(self.op.inputs)
        return tuple(_gradient([row[i] for row in rows]) for i in range(count))

    @property
    def grad_outs(self) -> tuple[NdSbp | None, ...]:
        """None where an axis states no gradient."""
        rows, count = [s.grad_outs for s in self.signatures], len(self.op.outputs)
        return tuple(_gradient([row[i] for row in rows]) for i in range(count))

    @property
    def inner(self) -> Inner | None:
        return next((s.inner for s in self.signatures if s.inner), None)

    @property
    def inner_axes(self) -> tuple[int, ...]:
        """The axes along which the operator communicates."""
        return tuple(a for a, s in enumerate(self.signatures) if s.inner)

    def in_shapes(self, rank: int) -> tuple[Shape, ...]:
        return self._shapes(self.op.inputs, self.ins, rank)

    def out_shapes(self, rank: int) -> tuple[Shape, ...]:
        return self._shapes(self.op.outputs, self.outs, rank)

    def _shapes(
        self, tensors: Sequence[TensorSpec], nds: Sequence[NdSbp], rank: int
    ) -> tuple[Shape, ...]:
        pairs = zip(tensors, nds, strict=True)
        return tuple(local_shape(t.shape, nd, self.mesh, rank) for t, nd in pairs)

    def shard(self, rank: int | None) -> Shard:
        """Where the tensors of `rank` begin; None stands for one device with the whole."""

        def starts(tensors: Sequence[TensorSpec], nds: Sequence[NdSbp]) -> tuple[Shape, ...]:
            if rank is None:
                return tuple((0,) * len(t.shape) for t in tensors)
            return tuple(
                tuple(s.start for s in local_slices(t.shape, nd, self.mesh, rank))
                for t, nd in zip(tensors, nds, strict=True)
            )

        return Shard(self.op, starts(self.op.inputs, self.ins), starts(self.op.outputs, self.outs))

    def __str__(self) -> str:
        return f"{self.op.kind} under [{' | '.join(map(str, self.signatures))}]"


def _gradient(places: Sequence[Placement | None]) -> NdSbp | None:
    known = tuple(p for p in places if p is not None)
    return NdSbp(known) if len(known) == len(places) else None
