"""Losses: the rows are split, and the classes where a masked lookup or an all-reduce allows it.

A device that holds some classes subtracts the first one's number (the offset of its shard) from the
target, and takes 0 for targets outside its range: the loss of a row is then a sum over devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Shape
from ..placement import B, P, S
from ..signature import Attrs, Inner, OpSpec, Signature, rule
from .build import broadcast_labels, dims_of, inner_split, labelled, natural, replicated, splits
from .reduce import per_input_element
from .softmax import FLOPS_PER_ELEMENT


def _classes(op: OpSpec) -> int:
    return op.inputs[0].shape[-1]


@rule(
    "nll", flops=lambda op: float(op.inputs[1].numel),
    saves="x1 x2", float32=True, index_limit=_classes,
)  # fmt: skip
def nll(op: OpSpec) -> Iterator[Signature]:
    """(input [..., c], target [...], weight [c]?) -> (output [...], out_weight [...]).

    `out_weight`, the weight of each row's target, takes no gradient, and `weight` gives none.
    """
    rows = dims_of(op.inputs[1].shape)
    classes = len(rows)
    whole = len(op.inputs) - 2
    ins = ((*rows, None), rows, *((None,),) * whole)
    outs = (rows,) * len(op.outputs)
    yield from splits(op, ins, outs, frozen_ins=(2,), frozen_outs=(1,))
    yield natural(
        op,
        (S(classes), B, *(B,) * whole),
        (P, B)[: len(op.outputs)],
        frozen_ins=(2,),
        frozen_outs=(1,),
    )
    yield replicated(op, frozen_ins=(2,), frozen_outs=(1,))


def _softmax_flops(op: OpSpec) -> float:
    return FLOPS_PER_ELEMENT * op.inputs[0].numel


def _local_depth(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """`depth` is the number of classes on the shard."""
    del outs
    return {**op.attrs, "depth": ins[0][-1]}


def _probabilities(op: OpSpec) -> tuple[float, float]:
    return 1.0, 0.0


@rule(
    "sparse_softmax_cross_entropy", local_attrs=_local_depth, flops=_softmax_flops,
    saves="x1 beside", beside=_probabilities, beside_lasts=False,
    float32=True, nonlinear=True, index_limit=_classes,
)  # fmt: skip
def sparse_softmax_cross_entropy(op: OpSpec) -> Iterator[Signature]:
    """(prediction [..., c], label [...]) -> out [...].

    Split classes: the maxima, the sums and the label's logits (masked) are all-reduced.
    """
    rows = dims_of(op.inputs[1].shape)
    classes = len(rows)
    yield from splits(op, ((*rows, None), rows), (rows,))
    inner = Inner(0, (classes,), forward=3, backward=0, room=(2.0, 0.0))
    yield inner_split(op, ((*rows, classes), rows), (rows,), classes, inner)
    yield replicated(op)


@rule("softmax_cross_entropy", flops=_softmax_flops, saves="all", float32=True, nonlinear=True)
def softmax_cross_entropy(op: OpSpec) -> Iterator[Signature]:
    """(prediction [..., c], label [..., c]) -> out [...]; the label gives no gradient."""
    rows = dims_of(op.outputs[0].shape)
    yield from labelled(op, ((*rows, None), (*rows, None)), (rows,), frozen_ins=(1,))


@rule("smooth_l1_loss", "kl_div_loss", saves="all", float32=True)
def elementwise_loss(op: OpSpec) -> Iterator[Signature]:
    """(input, target) -> out, elementwise."""
    dims = dims_of(op.outputs[0].shape)
    yield from labelled(op, (dims, dims), (dims,))


@rule(
    "binary_cross_entropy", "binary_cross_entropy_with_logits",
    saves="all", float32=True, nonlinear=True,
)  # fmt: skip
def binary_cross_entropy(op: OpSpec) -> Iterator[Signature]:
    """(input, target, weight?, pos_weight?) -> out, elementwise; only `input` gives a gradient."""
    out = op.outputs[0].shape
    ins = [broadcast_labels(t.shape, out) for t in op.inputs]
    frozen = range(1, len(op.inputs))
    yield from labelled(op, ins, (dims_of(out),), frozen_ins=frozen)


def _global_count(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """Add `count`, the global number of elements that the mean is over: sum locally, divide."""
    del ins, outs
    return {**op.attrs, "count": op.inputs[0].numel}


@rule(
    "binary_cross_entropy_with_logits_reduce_mean",
    local_attrs=_global_count,
    flops=per_input_element,
    saves="all",
    float32=True,
)
def binary_cross_entropy_mean(op: OpSpec) -> Iterator[Signature]:
    """(input, target) -> out [], the mean; a split gives summands of it, divided by `count`."""
    dims = dims_of(op.inputs[0].shape)
    yield from labelled(op, (dims, dims), ((),), frozen_ins=(1,))


def _ctc_flops(op: OpSpec) -> float:
    steps, rows = op.inputs[0].shape[:2]
    states = 2 * op.attrs["max_target_length"] + 1
    return 6.0 * steps * rows * states  # three predecessors, added as exponentials


@rule("ctc_loss", flops=_ctc_flops, saves="all")
def ctc_loss(op: OpSpec) -> Iterator[Signature]:
    """(log_probs [t, n, c], targets [n, s], input and target lengths [n]) -> out [n]."""
    targets = ("n", None) if len(op.inputs[1].shape) == 2 else (None,)
    ins = ((None, "n", None), targets, ("n",), ("n",))
    if len(targets) == 2:
        yield from labelled(op, ins, (("n",),))
    else:
        yield replicated(op)
