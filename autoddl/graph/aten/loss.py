"""Losses."""

from __future__ import annotations

from ..builder import GraphBuilder, Ref
from .table import Args, aten

_NONE, _MEAN, _SUM = 0, 1, 2  # ATen's numbers of reductions


def _reduced(e: GraphBuilder, each: Ref, reduction: int) -> Ref:
    if reduction == _NONE:
        return each
    return e.mean(each, ()) if reduction == _MEAN else e.sum(each, ())


def _classes_last(e: GraphBuilder, x: Ref) -> Ref:
    """[n, c, ...] -> [n, ..., c]."""
    return e.permuted(x, (0, *range(2, x.ndim), 1)) if x.ndim > 2 else x


def _each(e: GraphBuilder, logs: Ref, target: Ref, a: Args) -> list[Ref]:
    """The losses of logarithms [..., c], and their weights."""
    weights = [] if a["weight"] is None else [a["weight"]]
    outputs = [(target.shape, logs.dtype)] * 2
    return e.several("nll", [logs, target, *weights], outputs, ignore_index=a["ignore_index"])


def _weighted(e: GraphBuilder, logs: Ref, a: Args) -> Ref:
    """Logarithms [..., c] by the weights of classes."""
    if a["weight"] is None:
        return logs
    return e.op("broadcast_mul", [logs, a["weight"]], logs.shape)


def _nll(e: GraphBuilder, logs: Ref, a: Args) -> Ref:
    """Of logarithms [..., c]; a mean is over the weights of the targets."""
    each, weight = _each(e, logs, e.ref(a["target"]), a)
    if a["reduction"] != _MEAN:
        return _reduced(e, each, a["reduction"])
    total = e.sum(each, ()) if each.ndim else each
    divisor = e.sum(weight, ()) if weight.ndim else weight
    return e.op("broadcast_div", [total, divisor], ())


@aten("cross_entropy_loss")
def cross_entropy(e: GraphBuilder, a: Args) -> Ref:
    x, target = e.ref(a["self"]), e.ref(a["target"])
    x = _classes_last(e, x)
    logs = e.same("log_softmax", x)
    if target.is_float:
        target, share = _classes_last(e, target), a["label_smoothing"]
        if share:
            target = e.same("scalar_mul", target, operand=1 - share)
            target = e.same("scalar_add", target, operand=share / x.shape[-1])
        shares = e.op("broadcast_mul", [_weighted(e, logs, a), target], x.shape)
        each = e.same("negative", e.sum(shares, (-1,)))
        return _reduced(e, each, a["reduction"])
    if not a["label_smoothing"]:
        return _nll(e, logs, a)
    return _smooth(e, logs, target, a)


def _smooth(e: GraphBuilder, logs: Ref, target: Ref, a: Args) -> Ref:
    """Of each class the label has its share besides, of those that do not count nothing."""
    share, classes = a["label_smoothing"], logs.shape[-1]
    each, counts = _each(e, logs, target, a)
    valid = counts if a["weight"] is None else _each(e, logs, target, {**a, "weight": None})[1]
    others = e.sum(_weighted(e, logs, a), (-1,))
    others = e.same("scalar_mul", others, operand=-share / classes)
    others = e.op("broadcast_mul", [others, valid], each.shape)
    each = e.op("add_n", [e.same("scalar_mul", each, operand=1 - share), others], each.shape)
    if a["reduction"] != _MEAN or not each.ndim:
        return _reduced(e, each, a["reduction"])
    return e.op("broadcast_div", [e.sum(each, ()), e.sum(counts, ())], ())


@aten("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll(e: GraphBuilder, a: Args) -> Ref:
    return _nll(e, _classes_last(e, e.ref(a["self"])), a)


def _difference(e: GraphBuilder, a: Args) -> Ref:
    return e.op("broadcast_sub", [a["self"], a["target"]], e.ref(a["self"]).shape)


@aten("mse_loss")
def mse(e: GraphBuilder, a: Args) -> Ref:
    return _reduced(e, e.same("square", _difference(e, a)), a["reduction"])


@aten("l1_loss")
def l1(e: GraphBuilder, a: Args) -> Ref:
    return _reduced(e, e.same("abs", _difference(e, a)), a["reduction"])


@aten("smooth_l1_loss")
def smooth_l1(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    each = e.op("smooth_l1_loss", [x, a["target"]], x.shape, beta=float(a["beta"]))
    return _reduced(e, each, a["reduction"])


@aten("binary_cross_entropy_with_logits")
def bce_with_logits(e: GraphBuilder, a: Args) -> Ref:
    x, weight, positive = e.ref(a["self"]), a["weight"], a["pos_weight"]
    given = [x, a["target"], *(w for w in (weight, positive) if w is not None)]
    each = e.op(
        "binary_cross_entropy_with_logits", given, x.shape, has_pos_weight=positive is not None
    )
    return _reduced(e, each, a["reduction"])


@aten("binary_cross_entropy")
def bce(e: GraphBuilder, a: Args) -> Ref:
    x, weight = e.ref(a["self"]), a["weight"]
    given = [x, a["target"], *([] if weight is None else [weight])]
    return _reduced(e, e.op("binary_cross_entropy", given, x.shape), a["reduction"])


@aten("autoddl::ctc_loss")
def ctc_loss(e: GraphBuilder, a: Args) -> Ref:
    """In a mean, each is of its target's length."""
    names = "log_probs", "targets", "input_lengths", "target_lengths"
    logs, targets, steps, lengths = (e.ref(a[name]) for name in names)
    attrs = {"blank": a["blank"], "zero_infinity": a["zero_infinity"]}
    attrs["max_target_length"] = targets.shape[1]
    each = e.op("ctc_loss", [logs, targets, steps, lengths], logs.shape[1:2], logs.dtype, **attrs)
    if a["reduction"] == _MEAN:
        divisor = e.same("clip_by_scalar_min", e.cast(lengths, logs.dtype), floating_min=1.0)
        each = e.op("broadcast_div", [each, divisor], each.shape)
    return _reduced(e, each, a["reduction"])
