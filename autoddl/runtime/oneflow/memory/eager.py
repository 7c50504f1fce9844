"""What an operator holds as autoddl's executor runs it on OneFlow 0.9, by measurement.

forward
    view      the output shares its input's memory, unless a reshape takes a copy
    strided   inputs that are not contiguous are copied for a kernel, and autograd keeps the copies,
              unless its backward pass needs no input; a product keeps the views themselves
    kept      bytes beside inputs and outputs: of a variance nothing, of a LayerNorm what it scales
backward, all gradients at once
    view      reads only the gradient, of which its own is a view, unless that takes a copy
    product   reads its inputs, as does an elementwise one
    sum       reads only the gradient, as what adds or takes a number does
    others    OneFlow's autograd of the operator: all inputs and outputs are there

A sum's gradients are the one that comes. Of an input that was stretched the gradient is a sum; it
needs a workspace of what it sums up. Where that is a product or a difference, it is there as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....cost.collectives import Exchanged, Travel, workspace_while
from ....cost.memory import beside_bytes
from ....cost.step_tensors import OpPullback, view_of
from ....graph.placed import PlannedOp
from ....sbp.signature import OpSpec, find_rule, is_matmul

REDUCTIONS = ("reduce_sum", "reduce_mean")  # need a workspace of their input's size
# kinds whose backward pass keeps no copy of an input that is no contiguous one
_COPIES_FORGOTTEN = frozenset(
    {
        "relu", "sigmoid", "softmax", "log_softmax", "broadcast_add", "bias_add", "add_n",
        "broadcast_sub", "broadcast_mul", "scalar_mul", "scalar_add", "scalar_div", "dropout",
        "layer_norm",
    }
)  # fmt: skip
_INPUTS = "x0 x1 x2 x3"  # of the kinds that keep all of them
_SUMS = frozenset({"broadcast_add", "bias_add", "add_n", "scalar_add"})
# of `kernels.lean`: their backward pass reads no input
_LINEAR = frozenset({"broadcast_add", "add_n", "scalar_add", "broadcast_sub", "scalar_mul"})
_TERMS = {"expand": 1, "broadcast_sub": 1, "broadcast_mul": 2, "broadcast_div": 2}
_STRETCHED = frozenset({"broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div"})
# zeros, x less its mean, a mask, a choice; of a transposed convolution it was measured
_LIKE_INPUT = frozenset(
    {"narrow", "var", "dropout", "moe_dispatch", "deconv1d", "deconv2d", "deconv3d"}
)


def saves(kind: str) -> str:
    """What is read in the backward pass, in the words of `Rule.saves`."""
    rule = find_rule(kind)
    if kind in _LINEAR or (rule is not None and rule.view in ("same", "reshape", "transpose")):
        return ""
    return _INPUTS if is_matmul(kind) or kind == "broadcast_mul" else "all"


def kept_bytes(
    op: OpSpec,
    planned: PlannedOp,
    ins: Sequence[float],
    outs: Sequence[float],
    copies: Sequence[float],
) -> float:
    """Bytes that the forward pass keeps beside inputs and outputs, of these local bytes.

    copies: bytes that it takes to make the inputs contiguous
    """
    found = sum(copies)
    if found and _forgets_copies(op):
        found = 0.0
    if op.kind == "var" and not planned.inner_axes:
        return found
    if op.kind == "layer_norm" and len(ins) > 1:
        found += outs[0]
    return found + beside_bytes(op, ins, outs)


def workspace_bytes(op: OpSpec, ins: Sequence[float], copies: Sequence[float]) -> float:
    """Bytes that the forward pass needs only while it runs."""
    found = ins[0] if op.kind in REDUCTIONS else 0.0
    if op.kind == "var":  # x less its mean, its square, and the sum's own
        found = 3 * ins[0]
    if _is_stretched_last(op):
        found += max(ins)
    if any(copies) and _forgets_copies(op):
        found += sum(copies)
    return found + (ins[0] if op.kind == "dropout" else 0.0)


def moving_bytes(travel: Travel) -> float:
    """Bytes that are there only while a tensor travels.

    What a collective is given is copied into the local part of a global tensor. On the CPU there is
    one more piece, of what has just come round the ring; an all-to-all gathers two pieces with each
    other device in turn, and all of these are there when it ends.
    """

    def own_bytes(exchanged: Exchanged) -> float:
        if travel.device == "cpu" and exchanged.name == "all_to_all":
            return 2 * (exchanged.given - exchanged.own)
        return exchanged.given + (exchanged.own if travel.device == "cpu" else 0.0)

    return workspace_while(travel, own_bytes)


def _is_stretched_last(op: OpSpec) -> bool:
    """Whether an input is repeated along the last dim first (`kernels.elementwise`)."""
    if op.kind not in _STRETCHED:
        return False
    last = [spec.shape[-1] if spec.shape else 1 for spec in op.inputs]
    return min(last) == 1 < max(last)


def _forgets_copies(op: OpSpec) -> bool:
    return op.kind in _COPIES_FORGOTTEN or is_matmul(op.kind) or view_of(op) == "reshape"


def pull_back(op: OpPullback) -> None:
    """Append the backward pass to the step's tape."""
    if view_of(op.spec) in ("same", "reshape", "transpose"):
        op.pull_view()
        return
    inputs, outputs = range(op.num_inputs), range(op.num_outputs)
    reads = [op.dy(o) for o in outputs if op.dy(o)]
    saved = saves(op.kind)
    if saved:
        reads += map(op.x, inputs)
    if saved == "all":
        reads += map(op.y, outputs)
    if op.extra() in op.step.extras:
        reads.append(op.extra())
    makes = []
    workspace = op.bytes_x(0) if op.kind in _LIKE_INPUT else 0.0
    if op.kind == "var":  # x less its mean, and its gradient repeated
        workspace *= 2
    if op.kind == "broadcast_mul" and _is_stretched_last(op.spec):
        workspace = op.bytes_y()
    if op.kind == "moe_combine":
        workspace = op.bytes_y()  # what one choice found
    for index in filter(op.wants, inputs):
        adds_up = op.kind in _SUMS or op.kind in _TERMS
        is_stretched = adds_up and op.bytes_x(index) < op.bytes_y()
        hands_on = op.kind in _SUMS or (op.kind == "broadcast_sub" and index == 0)
        if hands_on and not is_stretched:
            op.give_view(index, op.dy())
            continue
        makes.append(op.new_gradient(index))
        if is_stretched:
            workspace = max(workspace, _TERMS.get(op.kind, 1) * op.bytes_y())
    copies = [op.copied_dy(o) for o in outputs]
    if saved == _INPUTS:  # one after the other
        workspace += max(*copies, *map(op.copied_x, inputs))
    else:
        workspace += sum(copies)
    op.step.tape.act(f"backward of {op.op.name}", reads, makes, workspace)
