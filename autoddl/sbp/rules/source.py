"""Sources, the graph's own operators (`fork`, `loss`, ends of stages) and opaque submodules.

Random draws are sources without a gradient: each shard draws its own numbers, replicas the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Shape
from ..placement import B, P, S
from ..signature import Attrs, OpSpec, Signature, rule
from .build import dims_of, labelled, natural, replicated, shape_of_shard, splits
from .shape import no_flops


@rule("param", flops=no_flops, saves="")
def param(op: OpSpec) -> Iterator[Signature]:
    """-> out; a parameter is whole or split, and its gradient has the same placement."""
    (out,) = op.outputs
    for place in (*(S(d) for d in range(len(out.shape))), B):
        yield Signature((), (place,), (place if out.is_float else None,), ())


@rule("input", "buffer", flops=no_flops, saves="")
def data(op: OpSpec) -> Iterator[Signature]:
    """-> out; every device reads the part that it needs. No gradient."""
    yield from labelled(op, (), (dims_of(op.outputs[0].shape),))


@rule("constant", local_attrs=shape_of_shard, saves="")
def constant(op: OpSpec) -> Iterator[Signature]:
    """-> out, filled with one value; attr shape is the shard's own on shards."""
    yield from labelled(op, (), (dims_of(op.outputs[0].shape),))


@rule("arange", "eye", "repeat_interleave", saves="")
def whole_source(op: OpSpec) -> Iterator[Signature]:
    """-> out; always produced whole, as splitting it is a free local step.

    repeat_interleave: (repeats, their running sum) -> number i as often as repeats[i] says
    """
    yield replicated(op)


def _out_shape(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    del ins
    return {**op.attrs, "out_shape": outs[0]}


@rule(
    "uniform", "uniform_int", "normal",
    local_attrs=shape_of_shard, saves="", float32=True, random=True,
)  # fmt: skip
@rule("exponential", local_attrs=_out_shape, saves="", float32=True, random=True)
def draws(op: OpSpec) -> Iterator[Signature]:
    """-> out, independent numbers; any dim may be split."""
    yield from labelled(op, (), (dims_of(op.outputs[0].shape),))


@rule("bernoulli", saves="", float32=True, random=True)
def bernoulli(op: OpSpec) -> Iterator[Signature]:
    """probabilities -> out, ones and zeros; attr p, unless it is -1, is the probability of all."""
    dims = dims_of(op.inputs[0].shape)
    yield from labelled(op, (dims,), (dims,), frozen_ins=(0,), frozen_outs=(0,))


@rule("randperm", saves="", random=True)
def permutation(op: OpSpec) -> Iterator[Signature]:
    """-> out [n], a permutation, which every device draws whole."""
    yield replicated(op)


@rule("fork", flops=no_flops, view="same", saves="")
def fork(op: OpSpec) -> Iterator[Signature]:
    """in -> out, identity for several consumers, whose gradients may also stay Partial."""
    dims = dims_of(op.inputs[0].shape)
    yield from splits(op, (dims,), (dims,))
    if op.inputs[0].is_float:
        yield Signature((P,), (P,), (B,), (B,))
        yield Signature((B,), (B,), (P,), (P,))
    yield replicated(op)


@rule("stop_gradient", flops=no_flops, view="same", saves="")
def stop_gradient(op: OpSpec) -> Iterator[Signature]:
    """in -> out, identity without a gradient."""
    dims = dims_of(op.inputs[0].shape)
    yield from labelled(op, (dims,), (dims,), linear=((0,),), frozen_ins=(0,), frozen_outs=(0,))


@rule("by_mode", flops=no_flops, view="same", saves="")
def by_mode(op: OpSpec) -> Iterator[Signature]:
    """(in training, in evaluation) -> out, one of them; or (in evaluation,) -> out, there alone.

    Only what is read in training gets a gradient.
    """
    dims, every = dims_of(op.outputs[0].shape), range(len(op.inputs))
    yield from labelled(
        op, [dims for _ in every], (dims,), linear=(every,), frozen_ins=every[-1:],
        frozen_outs=() if len(every) > 1 else (0,),
    )  # fmt: skip


@rule("loss", flops=no_flops, saves="", float32=True)
def loss(op: OpSpec) -> Iterator[Signature]:
    """scalar -> ; every device knows the loss."""
    assert not op.outputs and op.inputs[0].is_float
    yield Signature((B,), (), (), (B,))


@rule("stage_input", flops=no_flops, saves="")
def stage_input(op: OpSpec) -> Iterator[Signature]:
    """-> out, a tensor of an earlier pipeline stage; its gradient goes back placed as it came.

    attr gradient: whether one is wanted. Neither is Partial: sums are added up before they travel.
    """
    (out,) = op.outputs
    for place in (*(S(d) for d in range(len(out.shape))), B):
        yield Signature((), (place,), (place if op.attrs["gradient"] else None,), ())


@rule("stage_output", flops=no_flops, saves="")
def stage_output(op: OpSpec) -> Iterator[Signature]:
    """in -> ; a tensor that later pipeline stages read, and whose gradient they send back."""
    (sent,) = op.inputs
    for place in (*(S(d) for d in range(len(sent.shape))), B):
        yield Signature((place,), (), (), (place if op.attrs["gradient"] else None,))


def _opaque_flops(op: OpSpec) -> float:
    """A multiplication and an addition per parameter and row, as in a perceptron."""
    params = op.inputs[op.attrs["num_args"] :]
    rows = op.outputs[0].shape[0] if op.outputs and op.outputs[0].shape else 1
    return 2.0 * rows * sum(t.numel for t in params)


@rule("opaque", flops=_opaque_flops, heavy=True, saves="all")
def opaque(op: OpSpec) -> Iterator[Signature]:
    """(args..., params...) -> results: replicated, or split by rows if it is `batchwise`.

    Arguments whose first dim is the results' are split, the others and the parameters are whole.
    """
    rows = {t.shape[:1] for t in op.outputs}
    args = op.attrs["num_args"]
    if op.attrs["batchwise"] and len(rows) == 1 and rows != {()}:
        ins = [S(0) if i < args and t.shape[:1] in rows else B for i, t in enumerate(op.inputs)]
        if any(place.is_split for place in ins):
            yield natural(op, ins, [S(0)] * len(op.outputs))
    yield replicated(op)
