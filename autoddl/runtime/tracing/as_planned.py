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
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from ...graph.hints import is_opaque
from ..backend import Backend
from ..traced import Traced
from .checks import hooked

_STEPS_BETWEEN = 50  # looks at values and numbers, beside those before the first two steps
_SEEN = 256  # elements of each tensor, at most
TRAINED_BY = "_autoddl_trained_by"  # attribute that says whose step was the last
_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"
# what is looked at before each step, where a framework's tensors have it; _version counts changes
_FLAGS = "requires_grad", "dtype", "_version", *_HOOKS
_PLAIN = bool, int, float, str
_TENSOR = "a tensor"  # one of those that the plan has
Found = dict[str, Any]


class AsPlanned:
    """The user's model and loss as they were when this was made; nothing without a model."""

    def __init__(self, traced: Traced, backend: Backend) -> None:
        self._backend = backend
        read = {op.attrs["name"] for op in traced.graph.ops if op.kind in ("param", "buffer")}
        held = {**traced.params, **traced.buffers} if traced.model is not None else {}
        self._held = {name: x for name, x in held.items() if name in read}
        self._held |= {f"#constant {n}": x for n, x in enumerate(traced.constants)}
        self._ids = set(map(id, self._held.values()))
        self._model, self._loss = traced.model, traced.loss
        self._as_it_is = {id(call.function) for call in traced.opaque.values()}
        self._flag_names = [name for name in _FLAGS if hasattr(backend.facts.tensor, name)]
        self._modules, self._marks = dict(self._planned()), self._all_marks()
        self._flags, self._values = self._all_flags(), self._all_values()
        self._numbers = self._all_numbers()
        self._name, self._has_begun = uuid.uuid4().hex, False  # text, as the model may be pickled

    def check(self, step: int) -> None:
        """Before this step; ValueError if something is not as it was."""
        trained = next((x for x in self._held.values() if x.requires_grad), None)
        if trained is not None and not (trained.reshape(-1)[:1] * 1).requires_grad:
            raise ValueError(
                "trainer.step computes gradients: call it outside of no_grad and inference_mode"
            )
        flags = self._all_flags()
        looks = step < 2 or step % _STEPS_BETWEEN == 0
        if looks or flags != self._flags:
            self._check_tensors(flags, self._all_values() if looks else self._values)
        if looks:
            self._check_numbers(self._all_numbers())
        self._claim()

    def _check_tensors(self, flags: Found, values: Mapping[str, bytes]) -> None:
        for name, found in flags.items():
            now, planned = (
                dict(zip(self._flag_names, one, strict=True)) for one in (found, self._flags[name])
            )
            if any(now.pop(hook, None) for hook in _HOOKS):
                raise hooked(f"parameter {name}")
            if (trains := now["requires_grad"]) != planned["requires_grad"]:
                raise ValueError(
                    f"{name} was {'un' if trains else ''}frozen after the model was planned, which "
                    "training does not follow: call parallelize anew, or leave a parameter out of "
                    "a step by grad = None in trainer.after_backward"
                )
            if any(x != planned[key] for key, x in now.items()) or (
                values[name] != self._values[name]
            ):
                raise _changed(name)

    def _check_numbers(self, numbers: Found) -> None:
        for what in (*numbers, *self._numbers):
            old = self._numbers.get(what)
            new = numbers.get(what, "another one" if old == _TENSOR else None)
            if repr(old) != repr(new):  # what is no number is none still
                raise ValueError(
                    f"{what} was {old} when the model was planned and is {new} now, which training "
                    "does not follow; give what changes to the model and the loss as a tensor of "
                    "the batch, or call parallelize anew"
                )

    def _claim(self) -> None:
        """That this trainer steps; ValueError if another one has since this one did."""
        for name, marks in self._marks.items():
            for own, key in marks:
                if self._has_begun and own.get(key) != self._name:
                    raise ValueError(
                        f"{name} is trained by another trainer, too, and each trains values of its "
                        "own: trainers that take turns need parameters apart, as copy.deepcopy of "
                        "a module makes them; give them each other's values by load_state_dict"
                    )
                own[key] = self._name
        self._has_begun = True

    def _all_marks(self) -> dict[str, list[tuple[Found, str]]]:
        """Parameters, and where it stands who trains them: at the tensor, or else, as those of

        OneFlow take no attributes, at the modules that have it.
        """
        trained = {id(x): name for name, x in self._held.items() if x.requires_grad}
        found: dict[str, list[tuple[Found, str]]] = {name: [] for name in trained.values()}
        for module in () if self._model is None else self._model.modules():
            for key, x in module._parameters.items():
                if id(x) in trained:
                    takes = hasattr(x, "__dict__")
                    own = vars(x) if takes else vars(module).setdefault(TRAINED_BY, {})
                    found[trained[id(x)]].append((own, TRAINED_BY if takes else key))
        return found

    def _all_flags(self) -> Found:
        """Of each tensor what `_flag_names` name."""
        read = attrgetter(*self._flag_names)
        return {name: read(x) for name, x in self._held.items()}

    def _all_values(self) -> dict[str, bytes]:
        """Elements of each tensor: kept tensors would count as a step's memory."""
        alike: dict[Any, list[tuple[str, Any]]] = {}  # of a dtype and device: each read waits
        for name, x in self._held.items():
            flat = x.detach().reshape(-1)
            some = flat[:: 1 + len(flat) // _SEEN]
            alike.setdefault((x.dtype, x.device), []).append((name, some))
        found = dict[str, bytes]()
        for named in alike.values():
            values, start = self._backend.to_numpy(self._backend.cat([x for _, x in named], 0)), 0
            for name, x in named:
                found[name] = values[start : start + len(x)].tobytes()
                start += len(x)
        return found

    def _all_numbers(self) -> Found:
        found: Found = {}
        for path, module in self._planned():
            kind, own = type(module).__name__, self._modules.get(path, module)
            other = own is not module and type(own) is type(module)
            found[f"module {path}".rstrip()] = f"another {kind}" if other else kind
            tables = {**vars(module), **module._parameters, **module._buffers}
            found |= self._plain(tables, f"{path}.".lstrip("."))
        found |= dict(self._numbers_of(self._loss))
        return found

    def _planned(self) -> Iterator[tuple[str, Any]]:
        """The modules that do not run as they are, in which a step does what they say now."""
        left: list[tuple[str, Any]] = [] if self._model is None else [("", self._model)]
        seen = set[int]()
        while left:
            path, module = left.pop()
            if id(module) not in seen | self._as_it_is and not is_opaque(module):
                seen.add(id(module))
                yield path, module
                parts = ((name, m) for name, m in module._modules.items() if m is not None)
                left += ((f"{path}.{name}".lstrip("."), m) for name, m in parts)

    def _plain(self, names: Found, prefix: str) -> Found:
        """Plain values of names that are nobody's own, and tensors of the plan.

        That a module trains is the trainer's matter.
        """
        return {
            f"{prefix}{name}": value if isinstance(value, _PLAIN) else _TENSOR
            for name, value in names.items()
            if (isinstance(value, _PLAIN) or id(value) in self._ids)
            and not name.startswith("_")
            and name != "training"
        }

    def _numbers_of(self, loss: Any) -> Iterator[tuple[str, Any]]:
        """Those that a function reads from around it, a partial is given, or an object has."""
        if isinstance(loss, functools.partial):
            yield from self._plain(loss.keywords, "the loss's ").items()
            yield from self._numbers_of(loss.func)
            return
        code = getattr(loss, "__code__", None)
        if code is None:
            for part in loss.modules() if hasattr(loss, "modules") else [loss]:
                yield from self._plain(getattr(part, "__dict__", {}), "the loss's ").items()
            return
        own = getattr(loss, "__func__", loss)
        cells = zip(code.co_freevars, own.__closure__ or (), strict=True)
        around: Found = {name: cell.cell_contents for name, cell in cells if _is_set(cell)}
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in own.__globals__:
                around[step.argval] = own.__globals__[step.argval]
        yield from self._plain(around, "the loss's ").items()
        if hasattr(loss, "__self__"):
            yield from self._plain(vars(loss.__self__), "the loss's self.").items()


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _changed(name: str) -> ValueError:
    if name.startswith("#"):
        return ValueError(
            "a tensor that the model or the loss reads, and that is neither parameter nor buffer, "
            "was changed after the model was planned, which training does not follow; give it as a "
            "tensor of the batch, or call parallelize anew"
        )
    return ValueError(
        f"{name} was changed in the model itself, which stays as it is while a trainer trains "
        "values of its own; give it to trainer.load_state_dict, or change trainer.parameters(); "
        "to look at values that are trained, load them into a copy.deepcopy of the model"
    )
