"""The parameters that the user's optimizer is made for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..backend import Backend

_APART = 1e-3  # of the largest change; by element the two are equal to the last digits


class Parameters(list[Any]):
    """A list of this rank's parameters, as optimizers take it, which knows their names."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self._names = []
        for name, parameter in pairs:
            self._names.append(name)
            self.append(parameter)

    def named(self) -> Iterator[tuple[str, Any]]:
        """Pairs as the model's `named_parameters` gives them, of this rank's alone."""
        return zip(self._names, self, strict=True)


def check_handed(handed: Iterable[Any], taken: Iterable[Any]) -> None:
    """ValueError unless an optimizer has `taken` its parameters from those handed to it."""
    known = set(map(id, handed))
    if any(id(parameter) not in known for parameter in taken):
        raise ValueError(
            "the optimizer has parameters that were not handed to it, such as the model's own, "
            "which stay as they are: autoddl trains parameters of its own, and gives them to the "
            "function. Make it of these, e.g. lambda p: SGD(p, lr=0.1)"
        )


class OwnSteps:
    """The user's optimizer steps inside of `here()` alone.

    A trainer's step has updated the parameters: a loop's `optimizer.step()`, or a `GradScaler`'s,
    would do so once more, by the same gradients.
    """

    def __init__(self, optimizer: Any) -> None:
        self._is_here = False
        own = optimizer.step

        def step(_: Any, *given: Any, **options: Any) -> Any:
            if not self._is_here:
                raise ValueError(
                    "trainer.step has updated the parameters, and the optimizer would do so once "
                    "more by the same gradients: leave out optimizer.step() (a GradScaler's, too: "
                    'precision="float16" scales the loss)'
                )
            return own(*given, **options)

        optimizer.step = MethodType(step, optimizer)  # schedulers look for a method

    @contextmanager
    def here(self) -> Iterator[None]:
        self._is_here = True
        try:
            yield
        finally:
            self._is_here = False


def check_step(kind: type[Any]) -> None:
    """ValueError if the `step` of an optimizer class asks for what computes the loss again."""
    _, *given = inspect.signature(kind.step).parameters.values()
    asked = [p.name for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if asked:
        raise ValueError(
            f"{kind.__name__}.step asks for {asked[0]!r}: it computes the loss several times in a "
            "step, and a trainer's step has one pass for each update. Take an optimizer that works "
            "with the gradients of one, such as SGD or Adam"
        )


def check_by_element(name: str, change: Callable[[slice, slice], Any]) -> None:
    """ValueError if an optimizer changes a part of a parameter otherwise than within the whole.

    change: by how much it changes these rows and columns of a 4 x 4 matrix, given them alone
    """
    halves = slice(0, 2), slice(2, 4)
    whole = change(slice(4), slice(4))
    parts = [(whole[r, c], change(r, c)) for r in halves for c in halves]
    if any(abs(x - y).max() > _APART * abs(whole).max() for x, y in parts):
        raise ValueError(
            f"{name} does not work element by element, and the plan has parameters in parts: each "
            "device would change its part in another way than the whole. Take one that does, such "
            'as SGD or Adam, or keep parameters whole: hints={".": "replicate()"}, zero=False'
        )


def one_number(backend: Backend) -> tuple[str, Any]:
    """A parameter that no model has, where an optimizer is to be made and there is none else."""
    one, _ = backend.parameter((1,), "float32", NdSbp(()), Mesh(1, 1), backend.rank, True)
    return "none", one


def state_kind(optimizer: Any) -> str:
    """How much state an optimizer keeps, as the planner names it; an unknown one is Adam."""
    name = type(optimizer).__name__.lower()
    if name == "sgd":
        momentum = any(group["momentum"] for group in optimizer.param_groups)
        return "momentum" if momentum else "sgd"
    return name if name == "adamw" else "adam"
