"""Messages about what is wrong with a model or its example, written for the user who fixes it."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from typing import Any

import oneflow as flow
import oneflow.nn as nn

from ....graph.graph import Graph
from .job.job import LazyJob
from .job.raw import RawJob
from .job.recorder import LOSS, CallError

_KEPT_LINES = 3  # OneFlow's messages end with the cause; lines before are its C++ stack
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OPERATOR_FILE = re.compile(r"/user/ops/(\w+?)(?:_op)?\.cpp")
_SCOPED_NAME = re.compile(r"\b[cnb]\d+-(\w+)-\d+\b")
# what gives as many elements as values say, and how OneFlow tells that a value is read
_SHAPED_BY_VALUES = frozenset({"nonzero", "masked_select", "argwhere", "unique", "bincount"})
_READS = ("GetItem", ".numpy() is not allowed", "eager tensors supported only")
_NOISE = ("Error Type:", "Traceback", "Stack trace")


def check_local(tensors: Sequence[flow.Tensor]) -> None:
    """Raise ValueError if a tensor of the example is global, or empty, which aborts OneFlow."""
    for index, item in enumerate(tensors):
        if 0 in item.shape:
            raise ValueError(
                f"example[{index}] is empty, of shape {tuple(item.shape)}; an example is a batch "
                "such as the model is trained with"
            )
        if item.is_global:
            raise ValueError(
                f"example[{index}] is a global tensor; pass plain local tensors of the global batch"
            )


def check_model(model: Any) -> None:
    """Raise ValueError unless `model` is a module of local tensors."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"the model is a {type(model).__name__}, not a oneflow.nn.Module; wrap a function in a "
            "module whose forward calls it"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_global:
            raise ValueError(
                f"{name} is a global tensor; give autoddl the plain single-device model, it places "
                "the parameters itself"
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
    if not graph.loss or any(op.outputs[0] in graph.needs_grad for op in graph.params):
        return
    if not any(op.attrs["trainable"] for op in graph.params):
        raise ValueError(
            "no parameter that needs a gradient takes part in the loss; give the model parameters "
            "with requires_grad=True, or trace it without a loss"
        )
    if _loss_reads_parameters(graph):
        raise ValueError(
            "nothing would be trained, as no gradient flows from the loss to a parameter: the "
            "output is detached, made under no_grad, or the loss is not differentiable in it (such "
            "as argmax or a comparison)"
        )
    raise ValueError(
        "nothing would be trained, as the loss depends on no parameter; does it read the model's "
        "output?"
    )


def _loss_reads_parameters(graph: Graph) -> bool:
    wanted = {graph.loss}
    for op in reversed(graph.ops):
        if not wanted.isdisjoint(op.outputs):
            if op.kind == "param":
                return True
            wanted.update(op.inputs)
    return False


def explain_failure(error: CallError, model: nn.Module) -> ValueError:
    """The ValueError for a submodule that failed under the trace."""
    cause = error.__cause__
    assert cause is not None
    if error.path == LOSS:
        what = "the loss"
    elif error.path:
        kind = type(dict(model.named_modules())[error.path]).__name__
        what = f"submodule {error.path!r} ({kind})"
    else:
        what = f"the model's own forward ({type(model).__name__})"
    shapes = ", ".join(map(str, error.shapes)) or "none"
    user, below = _frames(cause)
    where = f", at {user.filename}:{user.lineno}" if user else ""
    return ValueError(
        f"the trace failed in {what}, called with tensors of shapes {shapes}"
        f"{where}: {type(cause).__name__}: {essence(str(cause))}\n{_way_out(cause, user, below)}"
    )


def _frames(error: BaseException) -> tuple[traceback.FrameSummary | None, list[str]]:
    """Where in the user's code `error` arose, if anywhere, and the functions called from there."""
    ours = (os.path.dirname(flow.__file__), os.path.dirname(__file__))
    user, below = None, list[str]()
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(ours):
            below.append(frame.name)
        else:
            user, below = frame, []
    return user, below


def _way_out(
    error: BaseException, user: traceback.FrameSummary | None, below: Sequence[str]
) -> str:
    """What the user can do about it."""
    text = str(error)
    called = {name for word in below for name in (word, word.removesuffix("_op"))}
    called |= set(re.findall(r"\w+", user.line or "")) if user else set()
    if called & _SHAPED_BY_VALUES or "boolean(mask)" in text:
        return (
            "The shape of the result depends on values there, and a plan needs all shapes before: "
            "keep every element and weigh it, e.g. x * mask or flow.where(mask, x, 0) for x[mask] "
            "and a mean by mask.sum(), or choose a fixed number of elements with flow.topk"
        )
    if any(sign in text for sign in _READS) or "_index" in below:
        return (
            "A value of a tensor is read there, and a model is traced on tensors without values: "
            "its forward must not read them (float(x), x.item(), x.numpy(), if x > 0). Compute "
            "with the tensor, e.g. flow.where(x > 0, a, b) for the if, or decide in __init__, or "
            "before the step and pass the result as an input"
        )
    return (
        "If the message is about shapes, model(*inputs) does not run on the example either. A "
        "model is traced on tensors without values: its forward must not read them"
    )


def essence(message: str) -> str:
    """The last informative lines of a OneFlow message, without colours and its C++ stack.

    OneFlow reports a failed check as a pair of numbers only; its source file names the operator.
    """
    message = _COLOUR.sub("", message)
    lines = [
        line.strip()
        for line in message.splitlines()
        if line.strip() and not line.startswith(" ") and not line.startswith(_NOISE)
    ]
    told = " ".join(lines[-_KEPT_LINES:]) or message.strip()
    operators = _OPERATOR_FILE.findall(message)
    told = _SCOPED_NAME.sub(r"operator \1", told)
    return f"{told} in operator {operators[-1]}" if operators else told
