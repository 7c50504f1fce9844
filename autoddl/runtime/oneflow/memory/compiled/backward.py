"""What the backward pass of an operator reads and makes in a compiled step.

This decides how long activations live. The gradient functions of OneFlow 0.9 follow what the
operator's gradient needs (`Rule.saves`), with these exceptions: some read an input only for its
shape, which keeps it alive nonetheless; some overwrite the gradient that comes; a sum needs a
workspace of the size of what it sums. A kind with an exception has a function of its own here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .....cost.collectives import Travel
from .....cost.memory import beside_bytes
from .....cost.step_tensors import OpPullback as Pullback
from .....graph.placed import PlannedOp
from .....sbp.signature import OpSpec, find_rule
from ..eager import REDUCTIONS
from .collectives import collective_workspace

Rule = Callable[[Pullback], None]
RULES: dict[str, Rule] = {}
# kinds whose gradient function reads the first input for nothing but its shape
_READ_FOR_SHAPE = frozenset(
    {
        "narrow", "gather", "embedding", "reduce_sum", "reduce_mean", "nll", "unfold_tensor",
        *(f"max_pool_{n}d" for n in (1, 2, 3)), *(f"adaptive_max_pool{n}d" for n in (1, 2, 3)),
        *(f"upsample_nearest_{n}d" for n in (1, 2, 3)), "upsample_linear_1d",
        "upsample_bilinear_2d", "upsample_bicubic_2d", "upsample_trilinear_3d",
    }
)  # fmt: skip


def pulls(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the backward pass of `kinds`."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            assert kind not in RULES, kind
            RULES[kind] = function
        return function

    return register


def kept_bytes(
    op: OpSpec,
    planned: PlannedOp,
    ins: Sequence[float],
    outs: Sequence[float],
    copies: Sequence[float],
) -> float:
    """Bytes that the forward pass keeps for the backward pass beside inputs and outputs."""
    del planned, copies
    return beside_bytes(op, ins, outs)


def workspace_bytes(op: OpSpec, ins: Sequence[float], copies: Sequence[float]) -> float:
    """Bytes that the forward pass needs only while it runs."""
    del copies
    return ins[0] if op.kind in REDUCTIONS else 0.0


def moving_bytes(travel: Travel) -> float:
    """Bytes that are there only while a tensor travels."""
    placed = travel.source, travel.target
    return collective_workspace(*placed, travel.before, travel.after, travel.mesh)


def saves(kind: str) -> str:
    """What the operator's rule says that its gradients read; of other kinds, everything."""
    rule = find_rule(kind)
    return "all" if rule is None or rule.saves is None else rule.saves


def pull_back(op: Pullback) -> None:
    """Append the backward pass of `op` to the tape of its step."""
    RULES.get(op.kind, _by_facets)(op)


def _by_facets(op: Pullback) -> None:
    """By what `saves` says."""
    rule = find_rule(op.kind)
    if rule is not None and rule.view in ("same", "reshape"):
        op.give_view(0, op.dy())
        return
    saved = saves(op.kind)
    inputs, outputs = range(op.num_inputs), range(op.num_outputs)
    if saved == "other":  # of a product of two
        for index in (1, 0):
            op.give(index, [op.dy(), op.x(1 - index)])
        return
    if saved == "all":
        reads = [*map(op.x, inputs), *map(op.y, outputs), *filter(None, map(op.dy, outputs))]
    else:
        reads = [op.dy(), *([op.x(0)] if op.kind in _READ_FOR_SHAPE else [])]
        names = {f"x{i}": op.x for i in inputs} | {"y0": op.y}
        for name in saved.split():
            if name == "beside":
                reads.append(op.extra())
            elif name in names:
                reads.append(names[name](int(name[1:])))
    for index in inputs:
        op.give(index, reads)


def _reduced(op: Pullback, index: int, whole: str) -> None:
    """The gradient of an input that was stretched: the sum of `whole` over the stretched dims."""
    op.give(index, [whole, op.x(index)], workspace=op.bytes_y())


def _is_stretched(op: Pullback, index: int) -> bool:
    return op.bytes_x(index) < op.bytes_y()


@pulls("broadcast_add", "bias_add", "add_n")
def _sum(op: Pullback) -> None:
    for index in range(op.num_inputs):
        if op.wants(index):
            if _is_stretched(op, index):
                _reduced(op, index, op.dy())
            else:
                op.give_view(index, op.dy())


@pulls("broadcast_sub")
def _difference(op: Pullback) -> None:
    if op.wants(1):
        negative = op.temporary([op.dy()], op.bytes_y(), over=op.dy())
        if _is_stretched(op, 1):
            _reduced(op, 1, negative)
        else:
            op.give_view(1, negative)
    if op.wants(0):
        if _is_stretched(op, 0):
            _reduced(op, 0, op.dy())
        else:
            op.give_view(0, op.dy())


@pulls("broadcast_mul")
def _multiplied(op: Pullback) -> None:
    for index in (1, 0):
        if op.wants(index):
            reads = [op.dy(), op.x(1 - index)]
            if _is_stretched(op, index):
                _reduced(op, index, op.temporary(reads, op.bytes_y()))
            else:
                op.give(index, reads)


@pulls("broadcast_div")
def _quotient(op: Pullback) -> None:
    if op.wants(1):
        op.give(1, [op.dy(), op.x(1), op.y()], workspace=op.bytes_y())
    if op.wants(0):
        if _is_stretched(op, 0):
            _reduced(op, 0, op.temporary([op.dy(), op.x(1)], op.bytes_y()))
        else:
            op.give(0, [op.dy(), op.x(1)])


@pulls("scalar_mul", "scalar_div", "scalar_add", "negative")
def _scaled(op: Pullback) -> None:
    if op.kind == "scalar_add":
        op.give_view(0, op.dy())
    else:
        op.give(0, [op.dy()], over=op.dy())


@pulls("relu", "hardtanh")
def _by_output_in_place(op: Pullback) -> None:
    op.give(0, [op.dy(), op.y()], over=op.dy())


@pulls("stack")
def _stacked(op: Pullback) -> None:
    """OneFlow has no split of it backward: all is gathered, and what comes out is cut again."""
    inputs = [op.whole_x(i) for i in range(op.num_inputs)]
    gradient = op.whole_dy()
    for index in range(op.num_inputs):
        if op.wants(index):
            part = op.temporary([*inputs, gradient], op.bytes_whole(index))
            op.give(index, [part], workspace=2 * op.bytes_x(index))


@pulls("concat")
def _joined(op: Pullback) -> None:
    inputs = [op.x(i) for i in range(op.num_inputs)]
    for index in range(op.num_inputs):
        if op.wants(index):
            op.give(index, [op.dy(), *inputs])


@pulls("expand")
def _expanded(op: Pullback) -> None:
    op.give(0, [op.dy()], workspace=op.bytes_y())


@pulls("dim_scatter_add", "dim_scatter_update", "dim_scatter_update_scalar",
       "tensor_scatter_nd_update")  # fmt: skip
def _scattered(op: Pullback) -> None:
    """(input, index, source): the source's gradient is looked up, the input's zero there."""
    if op.num_inputs > 2 and op.wants(2):
        op.give(2, [op.dy(), op.x(1)])
    if op.wants(0):
        if op.kind == "dim_scatter_add":
            op.give_view(0, op.dy())
        else:
            op.give(0, [op.dy(), op.x(1)])


@pulls("slice_update")
def _overwritten(op: Pullback) -> None:
    if op.wants(1):
        op.give(1, [op.dy()])
    if op.wants(0):
        op.give(0, [op.dy()], workspace=op.bytes_x(1))


@pulls("dropout")
def _dropped(op: Pullback) -> None:
    op.give(0, [op.dy(), op.extra()], over=op.dy())


@pulls("sparse_softmax_cross_entropy")
def _cross_entropy(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(1), op.extra()], over=op.extra())


@pulls("layer_norm")
def _normalised(op: Pullback) -> None:
    for index in reversed(range(op.num_inputs)):
        if op.wants(index):
            reads = [op.dy(), op.x(0), op.extra()]
            op.give(index, reads, workspace=op.bytes_y() if index else 0)
