"""What a user changes in a model after it was planned, which training would not see.

A trainer has parameters of its own, and a plan is of the numbers that the model and the loss had in
the one pass that was recorded. So weights that are clamped, averaged or loaded in the model itself,
parameters that are frozen later, and a temperature or a factor of the loss that follows the epoch
would be lost without a word. So would what one of two trainers that take turns, as those of a
generator and its critic, does to parameters of both: each trains values of its own.
"""

from __future__ import annotations

import dis
import functools
import uuid
from collections.abc import Iterator
from typing import Any

from ..traced import Traced
from .checks import hooked, opaque_modules

_STEPS_BETWEEN = 50  # looks at values and numbers, beside those before the first two steps
_SEEN = 256  # elements of each tensor, at most
_TRAINED_BY = "_autoddl_trained_by"  # attribute of a parameter: whose step was the last
_PLAIN = bool, int, float, str
Found = dict[str, Any]


class AsPlanned:
    """The user's model and loss as they were when this was made."""

    def __init__(self, traced: Traced) -> None:
        read = {op.attrs["name"] for op in traced.graph.ops if op.kind in ("param", "buffer")}
        held = {**traced.params, **traced.buffers}
        self._held = {name: x for name, x in held.items() if name in read}
        self._model, self._loss = traced.model, traced.loss
        self._opaque = () if self._model is None else tuple(opaque_modules(self._model))
        self._flags, self._values = self._all_flags(), self._all_values()
        self._numbers = self._all_numbers()
        self._name, self._has_begun = uuid.uuid4().hex, False  # text, as the model may be pickled

    def check(self, step: int) -> None:
        """Before this step; ValueError if something is not as it was."""
        flags = self._all_flags()
        looks = step < 2 or step % _STEPS_BETWEEN == 0
        values, numbers = (
            (self._all_values(), self._all_numbers()) if looks else (self._values, self._numbers)
        )
        for name, (trains, version, is_hooked) in flags.items():
            if is_hooked:
                raise hooked(f"parameter {name}")
            if trains != self._flags[name][0]:
                raise ValueError(
                    f"{name} was {'un' if trains else ''}frozen after the model was planned, which "
                    "training does not follow: call parallelize anew, or leave a parameter out of "
                    "a step by grad = None in trainer.after_backward"
                )
            if version != self._flags[name][1] or not _alike(values[name], self._values[name]):
                raise ValueError(
                    f"{name} was changed in the model itself, which stays as it is while a trainer "
                    "trains values of its own; give it to trainer.load_state_dict, or change "
                    "trainer.parameters()"
                )
        for what in (*numbers, *self._numbers):
            old, new = self._numbers.get(what), numbers.get(what)
            if repr(old) != repr(new):  # what is no number is none still
                raise ValueError(
                    f"{what} was {old} when the model was planned and is {new} now, which training "
                    "does not follow; give what changes to the model and the loss as a tensor of "
                    "the batch, or call parallelize anew"
                )
        self._claim()

    def _claim(self) -> None:
        """That this trainer steps; ValueError if another one has since this one did."""
        for name, x in self._held.items():
            if not x.requires_grad:
                continue
            if self._has_begun and getattr(x, _TRAINED_BY, "") != self._name:
                raise ValueError(
                    f"{name} is trained by another trainer, too, and each trains values of its "
                    "own: trainers that take turns need parameters apart, as copy.deepcopy of a "
                    "module makes them; give them each other's values by load_state_dict"
                )
            setattr(x, _TRAINED_BY, self._name)
        self._has_begun = True

    def _all_flags(self) -> dict[str, tuple[bool, int, bool]]:
        hooks = "_backward_hooks", "_post_accumulate_grad_hooks"
        return {
            name: (x.requires_grad, x._version, any(getattr(x, hook) for hook in hooks))
            for name, x in self._held.items()
        }

    def _all_values(self) -> dict[str, list[Any]]:
        """Elements of each tensor, as numbers: kept tensors would count as a step's memory."""
        flat = ((name, x.detach().reshape(-1)) for name, x in self._held.items())
        return {name: x[:: 1 + len(x) // _SEEN].tolist() for name, x in flat}

    def _all_numbers(self) -> Found:
        found: Found = {}
        for path, module in () if self._model is None else self._model.named_modules():
            if not any(f"{path}.".startswith(f"{outer}.") for outer in self._opaque):
                found[f"module {path}".rstrip()] = type(module).__name__
                found |= _plain(vars(module), f"{path}.".lstrip("."))
        found |= dict(_numbers_of(self._loss))
        return found


def _plain(names: Found, prefix: str) -> Found:
    """Plain values of names that are nobody's own; that a module trains is the trainer's matter."""
    return {
        f"{prefix}{name}": value
        for name, value in names.items()
        if isinstance(value, _PLAIN) and not name.startswith("_") and name != "training"
    }


def _numbers_of(loss: Any) -> Iterator[tuple[str, Any]]:
    """Those that a function reads from around it, a partial is given, or an object has."""
    if isinstance(loss, functools.partial):
        yield from _plain(loss.keywords, "the loss's ").items()
        yield from _numbers_of(loss.func)
        return
    code = getattr(loss, "__code__", None)
    if code is None:
        for part in loss.modules() if hasattr(loss, "modules") else [loss]:
            yield from _plain(getattr(part, "__dict__", {}), "the loss's ").items()
        return
    own = getattr(loss, "__func__", loss)
    cells = zip(code.co_freevars, own.__closure__ or (), strict=True)
    around: Found = {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in own.__globals__:
            around[step.argval] = own.__globals__[step.argval]
    yield from _plain(around, "the loss's ").items()
    if hasattr(loss, "__self__"):
        yield from _plain(vars(loss.__self__), "the loss's self.").items()


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _alike(now: list[Any], then: list[Any]) -> bool:
    return now == then or repr(now) == repr(then)  # what is no number is none still
