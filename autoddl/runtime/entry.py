"""Models by name: `module:function` names a function that returns (model, example, loss).

A name without a colon is one of the models that come with autoddl (`oneflow/models`), and
`hf:config.json` the one of transformers that the file configures, with its own loss.

`example` is the model's positional inputs followed by the target, `loss(output, target)` a scalar;
or `example` is a dict (`calling.py`).
The module is searched for in the current directory first.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

SHIPPED = f"{__package__}.oneflow.models"
HUGGING_FACE = "hf:"
_LONGEST = 2048  # tokens of a row, unless the name says another number: what many are trained with
_BY_TOKEN = ("LM", "LMHeadModel", "ForConditionalGeneration", "ForTokenClassification")
_BY_ROW = ("ForSequenceClassification", "ForImageClassification")
_WHOLE_ROWS = "autoddl_whole_rows"
_ATTENTION_DROPS = {"attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"}
Entry = tuple[Any, Any, Callable[..., Any]]


def shipped() -> dict[str, str]:
    """The models that come with autoddl, and what each is; read from their source, not imported.

    So they are listed where OneFlow, which they are written in, is not installed.
    """
    folder = Path(__file__).parent / SHIPPED.removeprefix(f"{__package__}.").replace(".", "/")
    trees = [ast.parse(file.read_text()) for file in sorted(folder.glob("*.py"))]
    found = {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    names = next(
        ast.literal_eval(node.value)
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return {name: found[name] for name in names}


def call_entry(name: str, batch: int | None = None) -> Entry:
    """(model, example, loss) of the function that `name` (module:function) names.

    `batch` is passed to the function if given. Raises ValueError if there is no such module or
    function, if it takes no batch, or if it returns something else.
    """
    function = find_entry(name)
    arguments: dict[str, Any] = {}
    if batch is not None:
        if "batch" not in _parameters(function):
            raise ValueError(f"{name} takes no argument 'batch', so its batch cannot be chosen")
        arguments["batch"] = batch
    missing = _needed(function) - arguments.keys()
    if missing:
        raise ValueError(
            f"{name} is called without arguments, but needs {', '.join(sorted(missing))}; give the "
            "name of a function that returns (model, example, loss)"
        )
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


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """None of what is written in C and does not tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _needed(function: Callable[..., Any]) -> set[str]:
    """The parameters that have no default."""
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return {
        name for name, one in _parameters(function).items()
        if one.default is one.empty and one.kind not in variable
    }  # fmt: skip


def find_entry(name: str) -> Callable[..., Any]:
    """The function itself, uncalled. ValueError as for `call_entry`."""
    if name.startswith(HUGGING_FACE):
        return functools.partial(hugging_face, name.removeprefix(HUGGING_FACE))
    module_name, colon, function_name = name.rpartition(":")
    if not function_name or (colon and not module_name):
        raise ValueError(f"{name!r} names no function; write module:function")
    module = _import(module_name or SHIPPED)
    function = getattr(module, function_name, None)
    if callable(function):
        return function
    every = {k: v for k, v in vars(module).items() if inspect.isfunction(v) and k[0] != "_"}
    near = difflib.get_close_matches(function_name, every, n=1)
    known = [k for k, v in every.items() if v.__module__ == module.__name__] or every
    hint = f"did you mean {module_name}{colon}{near[0]}?" if near else f"it has {', '.join(known)}"
    if colon:
        raise ValueError(f"module {module_name} has no function {function_name!r}; {hint}")
    raise ValueError(
        f"no model {name!r} comes with autoddl ('autoddl models' lists those that do); "
        + (hint if near else "write module:function for one of your own")
    )


def hugging_face(name: str, batch: int = 8) -> Entry:
    """The model that a configuration file of transformers is for, with random values.

    name: of the file; behind a colon how many tokens a row has, by default as many as the model
          takes, at most 2048

    Attention drops nothing, as no plan has that. ValueError if there is no such file or model, or
    what it learns is not known.
    """
    file, colon, length = name.rpartition(":")
    if not (colon and length.isdecimal() and int(length)):
        file, length = name, ""
    if not os.path.isfile(file):
        raise ValueError(f"{file}: no such file; give a model's config.json")
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"{HUGGING_FACE}{name} needs transformers, which cannot be imported here ({error}): "
            "pip install transformers"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(file)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{file}: {str(error).partition(chr(10))[0]}") from error
    (kind, *_) = config.architectures or [""]
    made = getattr(transformers, kind, None)
    by_token = kind.endswith(_BY_TOKEN)
    if made is None or not (by_token or kind.endswith(_BY_ROW)):
        raise ValueError(
            f"{file}: what a {kind or 'model without architectures'} learns is not known here, "
            "which LlamaForCausalLM tells; write a function for it, and give module:function"
        )
    config.use_cache = False
    _without_mask(transformers, config)
    for option in _ATTENTION_DROPS.intersection(config.to_dict()):
        setattr(config, option, 0.0)
    try:
        model = made(config)
    except KeyError as error:
        if error.args != (_WHOLE_ROWS,):
            raise
        config._attn_implementation = "eager"  # it looks up classes of its own by that name
        model = made(config)
    words = int(length) if length else min(_LONGEST, _longest(config))
    if model.main_input_name == "pixel_values":
        shape = batch, config.num_channels, config.image_size, config.image_size
        inputs = np.zeros(shape, np.float32)
    else:
        inputs = np.zeros((batch, words), np.int64)
    labels = np.zeros((batch, words) if by_token else batch, np.int64)
    arrays = {model.main_input_name: inputs, "labels": labels}
    example = dict(transformers.BatchEncoding(arrays, tensor_type="pt"))
    return model, example, lambda result, batch: result.loss


def _without_mask(transformers: Any, config: Any) -> None:
    """Attention to whole rows as one operator that is causal or not, as the model's is.

    Else transformers' masks tell several texts in a row apart, by what a batch holds. None is made
    for an attention of another name than theirs; this one stays registered as long as the process
    runs, as a model looks its attention up by name each time that it runs.
    """
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if windows or getattr(config, "sliding_window", None):
        return
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    transformers.AttentionInterface.register(_WHOLE_ROWS, sdpa_attention_forward)
    config._attn_implementation = _WHOLE_ROWS


def _longest(config: Any) -> int:
    """The tokens that a model takes, as far as its configuration says."""
    names = "max_position_embeddings", "n_positions"
    return next((n for name in names if (n := getattr(config, name, None))), _LONGEST)


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
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}" if error.filename else name
        raise ValueError(f"module {name!r} is no Python: {error.msg} ({where})") from error
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
