"""The table of ATen's operators, PyTorch's, in our own kinds.

The files of this folder fill it with those that only need the schemas' names; `runtime/torch/trace`
adds those that look at tensors.

A handler gets the arguments by the names of ATen's schema: tensors as `Ref`s (or as what they are,
if they are constants), and `out`: the shapes and dtypes of the results. It appends operators and
returns what stands for the result, or a sequence where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..builder import GraphBuilder

Args = Mapping[str, Any]
Handler = Callable[[Any, Args], Any]  # of a builder
HANDLERS: dict[str, Handler] = {}
# They give new memory, whatever their arguments are: what follows may write to it.
_NEW = {
    "add", "sub", "mul", "div", "linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "cat", "stack",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "batch_norm", "layer_norm", "group_norm", "instance_norm", "embedding", "relu",
    "gelu", "silu", "sigmoid", "tanh", "softmax", "mean", "sum", "avg_pool2d", "max_pool2d",
    "adaptive_avg_pool2d", "scaled_dot_product_attention", "empty", "empty_like", "new_empty",
}  # fmt: skip
_VIEWS = {
    "flatten", "unflatten", "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute",
}  # fmt: skip


def aten(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function for ATen's operators `names`, of any overload.

    A name with an overload ("pow.Scalar") comes before one without.
    """

    def register(function: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"aten.{name} has a handler already")
            HANDLERS[name] = function
        return function

    return register


def handled(target: Any) -> str | None:
    """The name under which an operator of torch has a handler, if it has one."""
    name = target._schema.name.removeprefix("aten::")
    name = name.removesuffix("_") if target._schema.is_mutable else name  # see `may_change`
    return next((n for n in (f"{name}.{target._overloadname}", name) if n in HANDLERS), None)


def arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by the names of the operator's schema, with defaults."""
    names = [(argument.name, argument.default_value) for argument in target._schema.arguments]
    given = {**dict(zip((name for name, _ in names), args, strict=False)), **kwargs}
    return {name: given.get(name, default) for name, default in names}


def may_change(call: Any) -> bool:
    """Whether a node of a program may change a tensor: then that is to be written without it.

    It takes twice as long as an export itself. What changes `torch.tensor`'s own result, which is
    new, changes nothing; and the runtime itself moves the statistics of a BatchNorm, and counts its
    batches, where nothing else reads them.
    """
    schema = getattr(call.target, "_schema", None)
    if schema is None:  # of Python's own operators, such as a product of sizes, none does
        return getattr(call.target, "__module__", "") != "_operator"
    if "_norm" in schema.name and "running_mean" in str(schema):
        given = arguments(call.target, call.args, call.kwargs)
        moved = [x for x in (given["running_mean"], given["running_var"]) if x is not None]
        readers = {user.target for x in moved for user in x.users}
        own = schema.name == "aten::batch_norm" and all(x.name.startswith("b_") for x in moved)
        return bool(moved) and not (own and readers == {call.target})
    if schema.name == "aten::add_" and call.args[0].name.endswith("num_batches_tracked"):
        return list(call.args[0].users) != [call] or bool(call.users)
    made_by = str(getattr(call.args[0], "target", "")) if call.args else ""
    is_new = schema.name == "aten::detach_" and made_by.startswith("aten.lift_fresh")
    return schema.is_mutable and not is_new and not _writes_alone(call)


def _writes_alone(call: Any) -> bool:
    """Whether a call in place writes to what nothing else reads: it may as well give a new tensor.

    Such as the ReLU of a BatchNorm's result.
    """
    schema = call.target._schema
    if [a.name for a in schema.arguments if a.is_write] != ["self"] or not handled(call.target):
        return False
    dtypes = {str(getattr(x.meta.get("val"), "dtype", "")) for x in call.all_input_nodes}
    own = str(getattr(call.meta.get("val"), "dtype", ""))
    return dtypes <= {own, "torch.bool", ""} and _reads_alone(call, call.args[0])


def _reads_alone(call: Any, read: Any) -> bool:
    """Whether what a call reads is new memory that it alone reads, or a view of such."""
    schema = getattr(getattr(read, "target", None), "_schema", None)
    if schema is None or list(read.users) != [call]:
        return False
    name = schema.name.removeprefix("aten::")
    if name in _NEW:
        return True
    return (
        _writes_alone(read)
        if schema.is_mutable
        else name in _VIEWS and _reads_alone(read, read.args[0])
    )


def renamed(kinds: Mapping[str, str]) -> None:
    """Register operators of one tensor that keep its shape: ATen's name -> our kind."""

    def one(kind: str) -> Handler:
        def handler(e: GraphBuilder, a: Args) -> Any:
            shape, dtype = a["out"]
            return e.op(kind, [a["self"]], shape, dtype)

        return handler

    for name, kind in kinds.items():
        aten(name)(one(kind))
