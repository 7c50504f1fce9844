"""The memory rules of PyTorch, which is not imported here: a `cost.memory_rules.MemoryRules`.

Autograd keeps of an operator what its formula reads, which is what the operators' own rules say
(`Rule.saves`, `Rule.beside`). A product of matrices takes views as they are; other operators copy
an input that is not contiguous if their kernel needs it so: counted as kept, which is the most.
A plan is not compiled: there is one step, the executor's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ....cost.memory import beside_bytes
from ....cost.step_tensors import OpPullback, PlannedStep, view_of
from ....cost.tape import Peak
from ....graph.placed import PlannedOp
from ....sbp.signature import OpSpec, find_rule, is_matmul

__all__ = ["compiled_bytes", "compiled_peak", "compiles", "operators"]
operators = sys.modules[__name__]  # this module is the rules of operators, too
_COPYING = ("attention", "conv1d", "conv2d", "conv3d", "layer_norm", "normalization", "rms_norm")
_ADDED = (
    "broadcast_add",
    "bias_add",
    "add_n",
    "scalar_add",
)  # whose gradient is the one that comes


def kept_bytes(
    op: OpSpec,
    planned: PlannedOp,
    ins: Sequence[float],
    outs: Sequence[float],
    copies: Sequence[float],
) -> float:
    """Bytes that the forward pass keeps beside inputs and outputs, of these local bytes."""
    return (sum(copies) if op.kind in _COPYING else 0.0) + beside_bytes(op, ins, outs)


def workspace_bytes(op: OpSpec, ins: Sequence[float], copies: Sequence[float]) -> float:
    """Bytes that the forward pass needs only while it runs."""
    if op.kind == "dropout":  # the numbers that are drawn
        return ins[0]
    return 0.0 if op.kind in _COPYING else sum(copies)


def pull_back(op: OpPullback) -> None:
    """Append the backward pass to the step's tape."""
    if view_of(op.spec) in ("same", "reshape", "transpose"):
        op.pull_view()
        return
    reads = [*(op.dy(o) for o in range(op.num_outputs) if op.dy(o)), *_saved(op)]
    if op.extra() in op.step.extras:
        reads.append(op.extra())
    makes, workspace = [], 0.0
    for index in filter(op.wants, range(op.num_inputs)):
        is_stretched = op.bytes_x(index) < op.bytes_y()
        if op.kind in _ADDED and not is_stretched:
            op.give_view(index, op.dy())
            continue
        makes.append(op.new_gradient(index))
        if is_stretched and not is_matmul(op.kind):  # the whole of it, before it is summed
            workspace = max(workspace, op.bytes_y())
    op.step.tape.act(f"backward of {op.op.name}", reads, makes, workspace)


def _saved(op: OpPullback) -> list[str]:
    """The tensors that autograd has kept."""
    rule = find_rule(op.kind)
    saves = "all" if rule is None or rule.saves is None else rule.saves
    inputs, outputs = range(op.num_inputs), range(op.num_outputs)
    if saves == "all":
        return [*map(op.x, inputs), *map(op.y, outputs)]
    names = saves.split()
    found = [op.x(n) for n in inputs if f"x{n}" in names or "other" in names]
    return [*found, op.y()] if "y0" in names else found


def compiles(plan: PlannedStep) -> bool:
    """No plan is compiled."""
    return False


def compiled_peak(plan: PlannedStep) -> Peak:
    raise AssertionError("no plan of torch is compiled")


def compiled_bytes(plan: PlannedStep) -> int:
    raise AssertionError("no plan of torch is compiled")
