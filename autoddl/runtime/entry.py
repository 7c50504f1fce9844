"""Models by name: `module:function` names a function that returns (model, example, loss).

A name without a colon is one of the models that come with autoddl (`oneflow/models`).

`example` is the model's positional inputs followed by the target, `loss(output, target)` a scalar;
or `example` is a dict (`calling.py`).
The module is searched for in the current directory first.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

SHIPPED = f"{__package__}.oneflow.models"
Entry = tuple[Any, Any, Callable[..., Any]]


def call_entry(name: str, batch: int | None = None) -> Entry:
    """(model, example, loss) of the function that `name` (module:function) names.

    `batch` is passed to the function if given. Raises ValueError if there is no such module or
    function, if it takes no batch, or if it returns something else.
    """
    function = find_entry(name)
    arguments: dict[str, Any] = {}
    if batch is not None:
        if "batch" not in inspect.signature(function).parameters:
            raise ValueError(f"{name} takes no argument 'batch', so its batch cannot be chosen")
        arguments["batch"] = batch
    result = function(**arguments)
    if not (isinstance(result, tuple) and len(result) == 3 and callable(result[2])):
        raise ValueError(
            f"{name} must return (model, example, loss) with a callable loss(output, target), "
            f"but it returned {describe(result)}"
        )
    model, example, loss = result
    if not isinstance(example, dict) and (not isinstance(example, tuple) or len(example) < 2):
        raise ValueError(
            f"the example that {name} returned must be a tuple of the model's inputs followed by "
            f"the target, or a dict of them by name, but it is {describe(example)}"
        )
    return model, example, loss


def find_entry(name: str) -> Callable[..., Any]:
    """The function itself, uncalled. ValueError as for `call_entry`."""
    module_name, colon, function_name = name.rpartition(":")
    if not function_name or (colon and not module_name):
        raise ValueError(f"{name!r} names no function; write module:function")
    module = _import(module_name or SHIPPED)
    function = getattr(module, function_name, None)
    if callable(function):
        return function
    known = [k for k, v in vars(module).items() if inspect.isfunction(v) and k[0] != "_"]
    near = difflib.get_close_matches(function_name, known, n=1)
    hint = f"did you mean {module_name}{colon}{near[0]}?" if near else f"it has {', '.join(known)}"
    if colon:
        raise ValueError(f"module {module_name} has no function {function_name!r}; {hint}")
    raise ValueError(
        f"no model {name!r} comes with autoddl ('autoddl models' lists those that do); "
        + (hint if near else "write module:function for one of your own")
    )


def describe(value: object) -> str:
    """The types of `value` and, of a tuple, of its elements."""
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return type(value).__name__


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ValueError(
                f"there is no module {name!r} in {folder} or on Python's path; "
                "run autoddl in the folder from which it can be imported"
            ) from error
        if missing.partition(".")[0] == "oneflow":
            raise ValueError(
                f"module {name!r} needs OneFlow, which is not installed here (see 'autoddl "
                "doctor'); a graph that 'autoddl trace' saved elsewhere is planned without it"
            ) from error
        raise ValueError(f"module {name!r} imports {missing!r}, which is not installed") from error
