"""What is refused of a model, as a plan would not do it, with a word of what to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...graph.hints import WAY_OUT, is_batchwise, is_opaque
from ..backend import Tensor

_PACKAGE = Path(__file__).parents[2]
_PLACES = "it moves or makes tensors on a device of its own choice; autoddl places them itself"
# what a framework's message, which has these words, means to a user
_MEANINGS = {
    "fake tensor in the exported program": "it takes `.data` or torch.autograd.grad of tensors",
    "failed to unpack the object": "it takes sizes from values, as of pack_padded_sequence",
    "Size-like symbols: u": "a size follows from values, as of x[mask] (bincount takes minlength)",
    "support for cuda": "it moves tensors to CUDA, which is not here; autoddl places them itself",
    # with a GPU, of torch 2.13 and later, and of 2.11
    "on the same device": _PLACES,
    "two different devices": _PLACES,
}


def check_ready(model: Any) -> None:
    """ValueError for parameters without a shape, or hooks of gradients: see `check_hooks`."""
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if hasattr(x, "materialize"):
            raise ValueError(
                f"{name.removeprefix('model.')} has no shape yet, as it is a lazy module's: call "
                "the model once on the example, then plan it"
            )
    opaque = opaque_modules(model)
    for path, module in model.named_modules():
        counts = getattr(module, "num_batches_tracked", None) is not None
        held = any(f"{path}.".startswith(f"{outer}.") for outer in opaque)
        if counts and getattr(module, "momentum", 0) is None and not held:
            raise ValueError(
                f"{path.removeprefix('model.')} ({type(module).__name__}) has momentum=None: its "
                "running statistics are means of all batches so far; give it a momentum, or let it "
                "run as it is on the whole batch: autoddl.opaque(module)"
            )
    _check_hooks(model, opaque)


def opaque_modules(model: Any) -> dict[str, Any]:
    """The outermost ones, by their paths."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        if is_opaque(module) and not any(f"{path}.".startswith(f"{p}.") for p in found):
            found[path] = module
    return found


def _check_hooks(model: Any, opaque: Collection[str]) -> None:
    """ValueError if something is to be called in a backward pass, where a plan would not call it.

    In opaque modules it is called: they run as they are.
    """
    watched = [(f"parameter {name}", p) for name, p in model.named_parameters()]
    for path, module in model.named_modules():
        if not any(f"{path}.".startswith(f"{outer}.") for outer in opaque):
            watched.append((f"module {path}", module))
    hooks = "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks"
    for what, one in watched:
        if any(getattr(one, name, None) for name in hooks):
            raise hooked(what.replace(" model.", " "))


def hooked(what: str) -> ValueError:
    """Why what has a hook on gradients is refused."""
    return ValueError(
        f"{what} has a hook on gradients, which a plan, whose backward pass is its own, would not "
        "call; change the gradients of parameters in trainer.after_backward(hook), and others by "
        "operators of the model"
    )


def check_rows(module: object, path: str, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    """ValueError for results of a batch-wise module without its arguments' rows."""
    rows = {x.shape[:1] for x in given if x.ndim}
    wrong = [tuple(x.shape) for x in made if x.shape[:1] not in rows]
    if wrong and is_batchwise(module):
        raise ValueError(
            f"{path} was declared batch-wise and gives a result of shape {wrong[0]}, which has as "
            "many rows as none of its arguments; autoddl.opaque(module) runs it whole"
        )


def check_changes(
    module: Any,
    path: str,
    buffers: Mapping[str, Tensor],
    now: Mapping[str, Tensor],
    changed: set[str],
) -> None:
    """ValueError if a call has changed what it may not: all but buffers, in place, as a whole.

    now: the buffers after the call; changed: names of parameters, buffers and arguments
    """
    changed = changed | _moving(module)
    assigned = {n for n, x in now.items() if x is not buffers.get(n)}
    wrong = assigned or changed - buffers.keys() or (changed if is_batchwise(module) else ())
    for name in sorted(wrong):
        way = "autoddl.opaque(module) runs it whole"
        raise ValueError(
            f"{path} changes {name} in its forward pass, which other devices would not see; "
            + (way if {*wrong} <= buffers.keys() - assigned else "change buffers in place alone")
        )


def _moving(module: Any) -> set[str]:
    """The running statistics that layers in it move, which their tensors do not tell."""
    found = set()
    for path, layer in module.named_modules():
        if layer.training and getattr(layer, "track_running_stats", False):
            names = (n for n, x in layer.named_buffers(recurse=False) if x is not None)
            found.update(f"{path}.{n}" if path else n for n in names)
    return found


def read_elsewhere(name: str) -> ValueError:
    """Why a parameter that a list or a closure holds is refused."""
    return ValueError(
        f"{name} is read by another way than from the module that has it, such as a list or a "
        "variable that was made before: a plan would take its values for constants, which get no "
        f"gradient and stay. Take it where it is read: model.{name}, or list(model.parameters()) "
        "inside of the function"
    )


def changing(what: str, name: str) -> ValueError:
    """Why a model that changes something in its forward pass is refused."""
    return ValueError(
        f"the model changes {what} {name.removeprefix('model.')} in its forward pass, which a plan "
        "would not do; compute it outside of the model, or return it, or let the module run as it "
        "is, which may change its buffers in place: autoddl.opaque(module)"
    )


def check_reached(model: Any, planned: set[str], eager: set[str], unsure: set[str]) -> None:
    """ValueError unless both reach the same parameters, or if they reach none.

    planned: those that get a gradient by the graph; eager: in the framework; unsure: either way
    """
    if not planned:
        raise ValueError(
            "no parameter that needs a gradient takes part in the loss; give the model parameters "
            "with requires_grad=True, or trace it without a loss"
        )
    foreign = sorted(planned - {name for name, _ in model.named_parameters()})
    if foreign:
        raise ValueError(
            f"the loss has a parameter of its own that trains, {foreign[0]}, and a plan trains the "
            "model's: make it a part of a model that returns the loss, which "
            "loss=lambda output, target: output then takes"
        )
    lost, new = sorted(eager - planned - unsure), sorted(planned - eager - unsure)
    if lost or new:
        what = f"{lost[0]} no gradient" if lost else f"{new[0]} a gradient that it has not in torch"
        raise ValueError(
            f"the trace of {type(model).__name__} would give {what} (one of "
            f"{len(lost) + len(new)} such parameters): autoddl does not follow what autograd does "
            "in this model, and does not train it wrongly"
        )


def not_recorded(model: Any, error: Exception) -> ValueError:
    """Why the framework cannot record the model, where, and what to do."""
    path = _where(model, error)
    known = next((m for words, m in _MEANINGS.items() if words in str(error)), None)
    return ValueError(
        f"torch.export cannot record {path or type(model).__name__}: {known or reason(error)}. A "
        "model is planned from the operators of one forward pass: take what depends on values "
        "(.item(), an `if` on a tensor, .data) out of its forward, or let the module that does it "
        f"run as it is: {WAY_OUT}"
    )


def is_own(error: Exception) -> bool:
    """Whether an error is one of this package's for the user, not of the model's or framework's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    made_in = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return isinstance(error, ValueError) and made_in.partition(".")[0] == __name__.partition(".")[0]


def check_loss(value: Any, kind: type) -> None:
    """ValueError unless a loss is a tensor (of class `kind`) of one float."""
    if not isinstance(value, kind) or value.numel() != 1 or value.ndim:
        shown = f"{tuple(value.shape)}" if isinstance(value, kind) else f"{value!r}"
        raise ValueError(f"the loss must be a scalar tensor, it is {shown}; reduce it first")
    if not value.is_floating_point():
        raise ValueError(f"the loss must be a tensor of floats, it is one of {value.dtype}")


def no_rule(module: str, trace: str, what: str) -> ValueError:
    """Why an operator is refused; trace: the lines of code that it comes from."""
    lines = trace.strip().splitlines()
    line = f", at `{lines[-1].strip()}`" if lines else ""
    return ValueError(
        f"in {module or 'the model'}{line}: autoddl has no rule for {what}; write it with other "
        f"operators, or let the module run as it is: {WAY_OUT}"
    )


def not_called(function: str) -> ValueError:
    """Why a hook is refused that the forward pass registers by this function."""
    return ValueError(
        f"the model's forward pass registers a hook on a gradient ({function}), which a plan would "
        "not call; write it with operators, such as x * 0.1 + (x * 0.9).detach(), or let the "
        f"module that does it run as it is: {WAY_OUT}"
    )


def check_seen(function: str) -> None:
    """ValueError if this function changes a tensor in place behind autograd's back."""
    if function:
        raise ValueError(
            f"the model changes a tensor that has a gradient in place ({function}), under no_grad "
            "or through a detached one, so that its gradient is not that of its values: write it "
            "without changing it, such as x + (x.clamp(0, 1) - x).detach()"
        )


def scaled_twice() -> ValueError:
    """Why a loss is refused that a `GradScaler` scales."""
    return ValueError(
        "the loss is scaled by a GradScaler, and nobody would divide the gradients by that again: "
        'leave it out; precision="float16" scales the loss and its gradients'
    )


def own_backward(name: str, kind: str) -> ValueError:
    """Why a function is refused of a class whose backward pass is its own."""
    return ValueError(
        f"{name} is a {kind}: its own backward pass would be lost, as a trace has forward "
        "operators alone. Write it with operators and detach, such as x + (round(x) - x).detach(), "
        f"or let the module that calls it run as it is: {WAY_OUT}"
    )


def not_followed(kind: str) -> ValueError:
    """Why an object of the model's own is refused, such as a generator."""
    return ValueError(
        f"the model reads a {kind} of its own, which a plan does not follow: it draws by its seed"
    )


def no_values(error: Exception) -> ValueError:
    """Why a model without memory is refused whose shapes follow from values."""
    return ValueError(
        "without values it cannot be told which parameters get a gradient, as a shape follows from "
        f"values: trace it on a device that has memory ({error})"
    )


def _where(model: Any, error: BaseException) -> str:
    """The path and class of the innermost module whose method has failed; "" for the model."""
    paths = {id(module): (path, module) for path, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace is not None:
        path, module = paths.get(id(trace.tb_frame.f_locals.get("self")), ("", None))
        found = f"{path} ({type(module).__name__})" if path else found
        trace = trace.tb_next
    return found


def reason(error: BaseException) -> str:
    """The first line of a framework's message that says something, and where."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    where = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    place = f" (line {where[-1][1]} of {where[-1][0]})" if where else ""
    if where and Path(where[-1][0]).is_relative_to(_PACKAGE):  # as of `as_finite`
        place = _line(error)
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}{place}".rstrip(".")


def _line(error: BaseException) -> str:
    """The innermost line that has failed of code that is neither ours nor torch's."""
    found, trace = "", error.__traceback__
    while trace is not None:
        made_in = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if made_in not in (__name__.partition(".")[0], "torch"):
            found = f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename})"
        trace = trace.tb_next
    return found
