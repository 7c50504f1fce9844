"""What is wrong with a model or its example, said so that the user can mend it."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
import oneflow.nn as nn

from ...graph import Graph
from .job import LOSS, CallError, LazyJob
from .raw import RawJob

_KEPT_LINES = 3
_NOISE = ("Error Type:", "Traceback", "Stack trace")


def check_example(example: Sequence[object], has_loss: bool) -> None:
    """Raise ValueError unless the example is tensors, and enough of them."""
    needed = 2 if has_loss else 1
    if len(example) < needed:
        raise ValueError(
            f"the example has {len(example)} tensors; expected the model's positional inputs"
            + (" followed by the target" if has_loss else "")
        )
    for index, item in enumerate(example):
        if not isinstance(item, flow.Tensor):
            raise ValueError(
                f"example[{index}] is a {type(item).__name__}; every input and the target must be "
                "a oneflow.Tensor. Fix other arguments in the model, e.g. in its __init__"
            )
        if item.is_global:
            raise ValueError(
                f"example[{index}] is a global tensor; pass plain local tensors of the global batch"
            )


def check_loss(raw: RawJob, lazy: LazyJob) -> None:
    """Raise ValueError unless the loss, if there is one, is a scalar."""
    shape = raw.specs[lazy.loss].shape if lazy.loss else ()
    if shape:
        raise ValueError(
            f"loss(output, target) gave a tensor of shape {shape}; it must be a scalar: reduce it, "
            "e.g. with .mean()"
        )


def check_trainable(graph: Graph) -> None:
    """Raise ValueError if there is a loss, but no parameter to train."""
    if graph.loss and not any(op.attrs["trainable"] for op in graph.params):
        raise ValueError(
            "no parameter that needs a gradient takes part in the loss; give the model parameters "
            "with requires_grad=True, or trace it without a loss"
        )


def explain_failure(error: CallError, model: nn.Module) -> ValueError:
    """The ValueError for a submodule that failed under the trace."""
    cause = error.__cause__
    assert cause is not None
    if error.path == LOSS:
        where = "the loss"
    elif error.path:
        where = (
            f"submodule {error.path!r} ({type(dict(model.named_modules())[error.path]).__name__})"
        )
    else:
        where = f"the model's own forward ({type(model).__name__})"
    return ValueError(
        f"the trace failed in {where}: {type(cause).__name__}: {essence(str(cause))}\n"
        "The model runs on tensors without values while it is traced, so its forward must not read "
        "them (float(x), x.item(), x.numpy(), if x > 0); it must run on the example's shapes, too: "
        "try model(*inputs) first"
    )


def essence(message: str) -> str:
    """The last telling lines of a OneFlow message, without its C++ stack."""
    lines = [
        line.strip()
        for line in message.splitlines()
        if line.strip() and not line.startswith(" ") and not line.startswith(_NOISE)
    ]
    return " ".join(lines[-_KEPT_LINES:]) or message.strip()
