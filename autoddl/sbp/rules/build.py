"""What the rule files share: signatures from labelled dims.

Most operators move, combine or sum the dims of their tensors. Give each dim a label, the same label
where dims run together, None where a dim must stay whole; then every label is one way to split the
operator along a mesh axis (`splits`): tensors that have the label are split there, inputs that lack
it are Broadcast, outputs that lack it have summed over it and are Partial. For `Y = X W`:

    X (m, k), W (k, n) -> Y (m, n)        m: S0, B -> S0    n: B, S1 -> S1    k: S1, S0 -> P

An operator that is linear in some of its inputs also takes those as summands (`partials`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from ..layout import Shape
from ..placement import B, P, Placement, S
from ..signature import Attrs, Inner, OpSpec, Signature

Dims = Sequence[Hashable | None]


def natural(
    op: OpSpec,
    ins: Sequence[Placement],
    outs: Sequence[Placement],
    *,
    frozen_ins: Sequence[int] = (),
    frozen_outs: Sequence[int] = (),
    inner: Inner | None = None,
    limit: int | None = None,
) -> Signature:
    """The signature with the gradients that a local vector-Jacobian product gives.

    The gradient of a split tensor is split alike and that of a Partial one is Broadcast. A
    Broadcast input is used by every device for its own share of the work, so that its gradient is
    Partial, unless all tensors are Broadcast. `frozen` tensors and those not float have none.
    """
    assert len(ins) == len(op.inputs) and len(outs) == len(op.outputs), (op.kind, ins, outs)
    shared = any(not p.is_broadcast for p in (*ins, *outs))
    takes = [t.is_float and i not in frozen_outs for i, t in enumerate(op.outputs)]
    gives = [t.is_float and i not in frozen_ins for i, t in enumerate(op.inputs)]
    flows = any(takes) and any(gives)

    def grad_out(placement: Placement) -> Placement:
        return B if placement.is_partial else placement

    def grad_in(placement: Placement) -> Placement:
        if placement.is_split:
            return placement
        return P if placement.is_broadcast and shared else B

    return Signature(
        tuple(ins),
        tuple(outs),
        tuple(grad_out(p) if flows and t else None for p, t in zip(outs, takes, strict=True)),
        tuple(grad_in(p) if flows and g else None for p, g in zip(ins, gives, strict=True)),
        inner,
        limit,
    )


def splits(
    op: OpSpec,
    ins: Sequence[Dims],
    outs: Sequence[Dims],
    *,
    frozen_ins: Sequence[int] = (),
    frozen_outs: Sequence[int] = (),
) -> Iterator[Signature]:
    """One signature per label, output labels first; see the module's docstring."""
    labels = dict.fromkeys(x for dims in (*outs, *ins) for x in dims if x is not None)
    for label in labels:
        in_places = [S(dims.index(label)) if label in dims else B for dims in ins]
        out_places = [S(dims.index(label)) if label in dims else P for dims in outs]
        if all(t.is_float or p != P for t, p in zip(op.outputs, out_places, strict=True)):
            yield natural(op, in_places, out_places, frozen_ins=frozen_ins, frozen_outs=frozen_outs)


def partials(
    op: OpSpec, *groups: Iterable[int], frozen_ins: Sequence[int] = ()
) -> Iterator[Signature]:
    """One signature per group of inputs in which the operator is jointly linear: P in, P out."""
    for group in map(tuple, groups):
        if all(op.inputs[i].is_float for i in group) and all(t.is_float for t in op.outputs):
            ins = [P if i in group else B for i in range(len(op.inputs))]
            yield natural(op, ins, [P] * len(op.outputs), frozen_ins=frozen_ins)


def replicated(
    op: OpSpec, *, frozen_ins: Sequence[int] = (), frozen_outs: Sequence[int] = ()
) -> Signature:
    """Every device computes the whole."""
    return natural(
        op,
        [B] * len(op.inputs),
        [B] * len(op.outputs),
        frozen_ins=frozen_ins,
        frozen_outs=frozen_outs,
    )


def labelled(
    op: OpSpec,
    ins: Sequence[Dims],
    outs: Sequence[Dims],
    *,
    linear: Iterable[Iterable[int]] = (),
    frozen_ins: Sequence[int] = (),
    frozen_outs: Sequence[int] = (),
) -> Iterator[Signature]:
    """All of the above: splits by label, Partial for each `linear` group of inputs, replicated."""
    yield from splits(op, ins, outs, frozen_ins=frozen_ins, frozen_outs=frozen_outs)
    yield from partials(op, *linear, frozen_ins=frozen_ins)
    yield replicated(op, frozen_ins=frozen_ins, frozen_outs=frozen_outs)


def inner_split(
    op: OpSpec,
    ins: Sequence[Dims],
    outs: Sequence[Dims],
    dim: Hashable,
    inner: Inner,
    *,
    frozen_ins: Sequence[int] = (),
) -> Signature:
    """Split by the label `dim`; outputs without it are Broadcast, as the operator all-reduces."""
    return natural(
        op,
        [S(dims.index(dim)) if dim in dims else B for dims in ins],
        [S(dims.index(dim)) if dim in dims else B for dims in outs],
        frozen_ins=frozen_ins,
        inner=inner,
    )


def broadcast_labels(shape: Shape, onto: Shape) -> tuple[int | None, ...]:
    """Labels of `shape`, right-aligned to `onto` whose labels are its dim numbers.

    A dim that is stretched has none.
    """
    lead = len(onto) - len(shape)
    return tuple(lead + d if n == onto[lead + d] else None for d, n in enumerate(shape))


def drop(labels: Iterable[int | None], *gone: int) -> tuple[int | None, ...]:
    """The labels with those of `gone` dims replaced by None, so that they are never split."""
    return tuple(None if x in gone else x for x in labels)


def dims_of(shape: Shape) -> tuple[int, ...]:
    """The labels 0, 1, ... of a tensor's dims."""
    return tuple(range(len(shape)))


def canonical(axes: int | Iterable[int], ndim: int) -> tuple[int, ...]:
    """Axes as a tuple of non-negative ones; () means all, as in the back end's reductions."""
    chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(a % ndim for a in chosen) if chosen else tuple(range(ndim))


def shape_of_shard(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """Local attributes of an operator whose attribute `shape` is that of its output."""
    del ins
    return {**op.attrs, "shape": outs[0]}
