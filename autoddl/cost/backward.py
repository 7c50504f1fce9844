"""What the backward pass of an operator reads and makes, kind by kind.

This decides how long activations live. A kind's rule is a function of a `Pullback`, which names the
operator's inputs x(i), outputs y(o) and their gradients. The rules follow the gradient functions of
OneFlow 0.9: relu reads its output, a product its inputs, gelu its input, softmax its output, a sum
nothing; a bias' gradient is a sum that needs a workspace of the size of what it sums; narrow reads
its input only for its shape, which keeps it alive nonetheless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Pullback(Protocol):
    """The operator whose gradients are worked out."""

    @property
    def kind(self) -> str: ...

    @property
    def num_inputs(self) -> int: ...

    @property
    def num_outputs(self) -> int: ...

    def x(self, index: int) -> str:
        """The name of an input, as the operator got it."""
        ...

    def y(self, index: int = 0) -> str:
        """The name of an output."""
        ...

    def dy(self, index: int = 0) -> str:
        """The name of the gradient of an output; "" if there is none."""
        ...

    def extra(self) -> str:
        """The name of what the forward pass kept beside its outputs."""
        ...

    def wants(self, index: int) -> bool:
        """True if the gradient of this input is needed."""
        ...

    def bytes_x(self, index: int) -> float:
        """Local bytes of an input."""
        ...

    def bytes_y(self, index: int = 0) -> float:
        """Local bytes of an output."""
        ...

    def bytes_whole(self, index: int) -> float:
        """Bytes of an input that is not split."""
        ...

    def whole_x(self, index: int) -> str:
        """An input gathered from all devices."""
        ...

    def whole_dy(self) -> str:
        """The gradient of the output gathered from all devices."""
        ...

    def temporary(
        self, reads: Sequence[str], size: float, workspace: float = 0, over: str = ""
    ) -> str:
        """Compute something on the way; gives its name."""
        ...

    def give(self, index: int, reads: Sequence[str], workspace: float = 0, over: str = "") -> None:
        """Compute the gradient of an input."""
        ...

    def give_view(self, index: int, source: str) -> None:
        """The gradient of an input is that of an output, or a view of it."""
        ...


Rule = Callable[[Pullback], None]
RULES: dict[str, Rule] = {}


def pulls(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the backward pass of `kinds`."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            assert kind not in RULES, kind
            RULES[kind] = function
        return function

    return register


def pull_back(op: Pullback) -> None:
    """The backward pass of `op`."""
    RULES.get(op.kind, _everything)(op)


def _everything(op: Pullback) -> None:
    """A kind without a rule: all inputs and outputs are kept."""
    reads = [*(op.x(i) for i in range(op.num_inputs)), *(op.y(o) for o in range(op.num_outputs))]
    reads += [op.dy(o) for o in range(op.num_outputs) if op.dy(o)]
    for index in range(op.num_inputs):
        if op.wants(index):
            op.give(index, reads)


def _reduced(op: Pullback, index: int, whole: str) -> None:
    """The gradient of an input that was stretched: the sum of `whole` over the stretched dims."""
    op.give(index, [whole, op.x(index)], workspace=op.bytes_y())


def _is_stretched(op: Pullback, index: int) -> bool:
    return op.bytes_x(index) < op.bytes_y()


@pulls("matmul", "broadcast_matmul", "batch_matmul", "matrix_vector_product", "dot",
       "vector_matrix_product", "conv1d", "conv2d", "conv3d",
       "deconv1d", "deconv2d", "deconv3d")  # fmt: skip
def _product(op: Pullback) -> None:
    for index in (1, 0):
        if op.wants(index):
            op.give(index, [op.dy(), op.x(1 - index)])


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


@pulls("softmax", "log_softmax", "sigmoid", "exp", "hardshrink")
def _by_output(op: Pullback) -> None:
    op.give(0, [op.dy(), op.y()])


@pulls("gelu", "fast_gelu", "quick_gelu", "tanh", "silu", "mish", "selu", "softsign", "hardswish",
       "hardsigmoid", "leaky_relu", "softplus", "elu", "celu", "softshrink", "threshold", "log",
       "log_sigmoid", "sqrt", "rsqrt", "square", "abs", "reciprocal", "scalar_pow", "erf", "sin",
       "cos", "clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max", "log10", "lgamma",
       "unfold_tensor", "upsample_nearest_1d", "upsample_nearest_2d", "upsample_nearest_3d",
       "upsample_linear_1d", "upsample_bilinear_2d", "upsample_bicubic_2d",
       "upsample_trilinear_3d")  # fmt: skip
def _by_input(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0)])


@pulls("reshape", "squeeze", "expand_dims", "flatten", "identity", "fork")
def _view(op: Pullback) -> None:
    op.give_view(0, op.dy())


@pulls("transpose", "cast", "slice", "flip", "roll", "tril", "triu", "cumsum", "pad", "unfold",
       "fold", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
       "affine_grid")  # fmt: skip
def _rearranged(op: Pullback) -> None:
    op.give(0, [op.dy()])


@pulls("narrow")
def _narrowed(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0)])


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


@pulls("gather", "embedding")
def _looked_up(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0), op.x(1)])


@pulls("reduce_sum", "reduce_mean", "reduce_nansum")
def _summed(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0)])


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


@pulls("var")
def _variance(op: Pullback) -> None:
    op.give(0, [op.dy(), op.extra()])


@pulls("max_pool_1d", "max_pool_2d", "max_pool_3d", "adaptive_max_pool1d",
       "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def _largest(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0), op.extra()])


@pulls("dropout")
def _dropped(op: Pullback) -> None:
    op.give(0, [op.dy(), op.extra()], over=op.dy())


@pulls("sparse_softmax_cross_entropy")
def _cross_entropy(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(1), op.extra()], over=op.extra())


@pulls("nll")
def _picked(op: Pullback) -> None:
    op.give(0, [op.dy(), op.x(0), op.x(1)])


@pulls("layer_norm")
def _normalised(op: Pullback) -> None:
    for index in reversed(range(op.num_inputs)):
        if op.wants(index):
            reads = [op.dy(), op.x(0), op.extra()]
            op.give(index, reads, workspace=op.bytes_y() if index else 0)


@pulls("masked_fill", "where", "where_scalar_x", "where_scalar_y")
def _selected(op: Pullback) -> None:
    condition = op.x(1 if op.kind == "masked_fill" else 0)
    for index in range(op.num_inputs):
        if op.wants(index):
            op.give(index, [op.dy(), condition])
