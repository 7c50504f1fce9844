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
    return next((n for n in (f"{name}.{target._overloadname}", name) if n in HANDLERS), None)


def arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by the names of the operator's schema, with defaults."""
    names = [(argument.name, argument.default_value) for argument in target._schema.arguments]
    given = {**dict(zip((name for name, _ in names), args, strict=False)), **kwargs}
    return {name: given.get(name, default) for name, default in names}


def may_change(call: Any) -> bool:
    """Whether a node of a program may change a tensor: then that is to be written without it.

    It takes as long as an export itself, which most language models do not need. What changes
    `torch.tensor`'s own result, which is new, changes nothing.
    """
    schema = getattr(call.target, "_schema", None)
    if schema is None:  # of Python's own operators, such as a product of sizes, none does
        return getattr(call.target, "__module__", "") != "_operator"
    if "_norm" in schema.name and "running_mean" in str(schema):
        return arguments(call.target, call.args, call.kwargs)["running_mean"] is not None
    made_by = str(getattr(call.args[0], "target", "")) if call.args else ""
    is_new = schema.name == "aten::detach_" and made_by.startswith("aten.lift_fresh")
    return schema.is_mutable and not is_new


def renamed(kinds: Mapping[str, str]) -> None:
    """Register operators of one tensor that keep its shape: ATen's name -> our kind."""

    def one(kind: str) -> Handler:
        def handler(e: GraphBuilder, a: Args) -> Any:
            shape, dtype = a["out"]
            return e.op(kind, [a["self"]], shape, dtype)

        return handler

    for name, kind in kinds.items():
        aten(name)(one(kind))
