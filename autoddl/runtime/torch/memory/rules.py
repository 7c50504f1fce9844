"""The memory rules of PyTorch, which is not imported here: a `cost.memory_rules.MemoryRules`.

Autograd keeps of an operator what its formula reads. That is what the operators' own rules say
(`Rule.saves`, `Rule.beside`), but for the kinds below; a tensor that is not contiguous is kept as
it is. A formula of several steps needs room for what lies between them. What is kept is measured,
for every kind of operator, by tests/pytorch/test_memory.py. A plan is not compiled: there is one
step, the executor's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from ....cost.collectives import Travel, workspace_while
from ....cost.memory import beside_bytes
from ....cost.step_tensors import OpPullback, PlannedStep, view_of
from ....graph.placed import PlannedOp
from ....sbp.signature import OpSpec, find_rule, is_matmul

__all__ = ["compiled_bytes", "compiled_peak", "compiles", "operators"]
operators = sys.modules[__name__]  # this module is the rules of operators, too

# whose kernels make an input contiguous first, and again in the backward pass
_COPYING = ("conv1d", "conv2d", "conv3d", "layer_norm", "normalization", "rms_norm")
# whose gradient, or gradients, are the one that comes, or views of it; or parts of it
_HANDED_ON = ("broadcast_add", "bias_add", "add_n", "scalar_add", "reduce_sum", "reduce_mean")
_PARTED = ("concat", "stack")
_SAVES: dict[str, str] = {
    kind: saved
    for saved, kinds in {
        "": "floor ceil round rint trunc sign scalar_fmod scalar_floordiv floordiv argmax "
        "median_indices reciprocal_no_nan",
        "x0": "hardtanh hardshrink log1p log2 asin acos atan sinh cosh asinh acosh atanh erfc "
        "avg_pool_1d avg_pool_2d avg_pool_3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d reflection_pad1d reflection_pad2d replication_pad1d "
        "replication_pad2d normalization var l2_normalize scatter_nd nll",
        "x0 x1": "broadcast_maximum broadcast_minimum elementwise_maximum elementwise_minimum "
        "grid_sample broadcast_fmod atan2 xdivy linalg_cross broadcast_div dim_gather batch_gather "
        "smooth_l1_loss kl_div_loss binary_cross_entropy binary_cross_entropy_with_logits "
        "binary_cross_entropy_with_logits_reduce_mean rms_norm prelu",
        "x0 beside": "max_pool_1d max_pool_2d max_pool_3d adaptive_max_pool1d "
        "adaptive_max_pool2d adaptive_max_pool3d",
        "x1": "gather_nd max_unpool_1d max_unpool_2d max_unpool_3d softmax_cross_entropy",
        "y0": "tanh sqrt rsqrt reciprocal expm1 tan inv",
    }.items()
    for kind in kinds.split()
}
# of the first input's bytes: kept beside inputs and outputs; between steps of a backward formula
_BESIDE = {
    "quick_gelu": 1.0, "softsign": 1.0, "log_sigmoid": 1.0, "softmax_cross_entropy": 1.0,
    "reciprocal_no_nan": 1.25, "l2_normalize": 0.33, "rms_norm": 1.0, "var": 0.0,
}  # fmt: skip
_BETWEEN = {
    "expm1": 1.0, "log1p": 1.0, "log2": 1.0, "log10": 1.0, "lgamma": 1.0, "sqrt": 1.0, "abs": 1.0,
    "sinh": 1.0, "cosh": 1.0, "sin": 1.0, "quick_gelu": 1.0, "dropout": 1.0, "square": 2.0,
    "scalar_pow": 2.0, "rsqrt": 2.0, "reciprocal": 2.0, "cos": 2.0, "tan": 2.0, "atan": 2.0,
    "cumsum": 2.0, "asinh": 3.0, "acosh": 3.0, "atanh": 3.0, "softsign": 3.0, "erf": 4.0,
    "erfc": 4.0, "asin": 4.0, "acos": 5.0, "reduce_max": 0.75, "reduce_min": 0.75,
    "reduce_prod": 5.0, "var": 1.25, "reciprocal_no_nan": 2.75, "l2_normalize": 2.0,
}  # fmt: skip


def kept_bytes(
    op: OpSpec,
    planned: PlannedOp,
    ins: Sequence[float],
    outs: Sequence[float],
    copies: Sequence[float],
) -> float:
    """Bytes that the forward pass keeps beside inputs and outputs, of these local bytes."""
    share = _BESIDE.get(op.kind)
    if op.kind == "layer_norm" and op.inputs[-1].dtype != op.inputs[0].dtype:
        return ins[0] + beside_bytes(op, ins, outs)  # what is scaled in float32
    if op.kind == "rms_norm" and op.inputs[0].dtype != "float32":
        return len(ins) * ins[0]  # on CPUs x in float32, and what a weight scales
    return beside_bytes(op, ins, outs) if share is None else share * ins[0]


def workspace_bytes(op: OpSpec, ins: Sequence[float], copies: Sequence[float]) -> float:
    """Bytes that the forward pass needs only while it runs."""
    if op.kind == "dropout":  # the numbers that are drawn
        return ins[0]
    return sum(copies) if op.kind in _COPYING else 0.0


def moving_bytes(travel: Travel) -> float:
    """gloo gathers into a tensor of its own; its reduce-scatter is an exchange, then a sum."""
    own = {"all_gather": "got", "reduce_scatter": "given"} if travel.device == "cpu" else {}
    return workspace_while(travel, lambda x: getattr(x, own[x.name]) if x.name in own else 0.0)


def pull_back(op: OpPullback) -> None:
    """Append the backward pass to the step's tape."""
    if view_of(op.spec) in ("same", "reshape", "transpose"):
        op.pull_view()
        return
    reads = [*(op.dy(o) for o in range(op.num_outputs) if op.dy(o)), *_saved(op)]
    if op.extra() in op.step.extras:
        reads.append(op.extra())
    makes, workspace = [], _BETWEEN.get(op.kind, 0.0) * op.bytes_x(0)
    if op.kind in _COPYING:
        workspace += sum(op.copied_x(n) for n in range(op.num_inputs)) + op.copied_dy(0)
    for index in filter(op.wants, range(op.num_inputs)):
        is_stretched = op.bytes_x(index) < op.bytes_y()
        if op.kind in _PARTED or (op.kind in _HANDED_ON and not is_stretched):
            op.give_view(index, op.dy())
            continue
        makes.append(op.new_gradient(index))
        if is_stretched and not is_matmul(op.kind):  # the whole of it, before it is summed
            workspace = max(workspace, op.bytes_y())
    op.step.tape.act(f"backward of {op.op.name}", reads, makes, workspace)


def saves(kind: str) -> str:
    """What autograd keeps of an operator, in the words of `Rule.saves`."""
    rule = find_rule(kind)
    return "all" if rule is None or rule.saves is None else _SAVES.get(kind, rule.saves)


def _saved(op: OpPullback) -> list[str]:
    """The tensors that autograd has kept."""
    inputs, outputs = range(op.num_inputs), range(op.num_outputs)
    names = saves(op.kind).split()
    if names == ["all"]:
        return [*map(op.x, inputs), *map(op.y, outputs)]

    def is_kept(index: int) -> bool:
        """`other` is read for the gradient of the other input, if that is wanted."""
        of_another = any(op.wants(n) for n in inputs if n != index)
        return f"x{index}" in names or ("other" in names and of_another)

    found = [op.x(n) for n in inputs if is_kept(n)]
    return [*found, op.y()] if "y0" in names else found


def compiles(plan: PlannedStep) -> bool:
    """No plan is compiled."""
    return False


def compiled_peak(plan: PlannedStep, enough: int = 0) -> NoReturn:
    raise AssertionError("no plan of torch is compiled")


compiled_bytes = compiled_peak
