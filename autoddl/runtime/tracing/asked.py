"""What a run of a model asks its framework for, and whether a run in another mode asks the same.

The second run computes nothing: as long as it asks for what the first one has asked, it gets what
that one got, the same tensors, so that its code goes on as it would. The first call that is another
ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_OF_MODE = ("training", "momentum")  # arguments that differ, as kernels know
_DROPPED = "dropout_p"  # what attention drops in training, and in evaluation nothing


class Differs(Exception):
    """A run asks for something else."""


@dataclass
class Asked:
    """The calls of one run, in order.

    tensor:  the framework's class
    plain:   classes of values that do not change
    calls:   (function, its arguments), and what it gave
    results: of the run
    """

    tensor: type
    plain: tuple[type, ...]
    calls: list[tuple[Any, Any]] = field(default_factory=list)
    results: Any = None

    def note(self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        self.calls.append((_held((function, args, kwargs)), _held(result)))

    def again(self) -> Again:
        """For another run."""
        return Again(self, iter(self.calls))


@dataclass
class Again:
    """A run that is to ask for what another one has asked. `is_same`: it has so far."""

    first: Asked
    _left: Iterator[tuple[Any, Any]]
    is_same: bool = True

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the other run got. Raises `Differs` where this one asks for something else."""
        known, result = next(self._left, (None, None))
        self.is_same = (
            self.is_same and known is not None and self._asks(known, function, args, kwargs)
        )
        if self.is_same and not self._has_tensors((args, kwargs, result)):
            found = function(*args, **kwargs)  # such as a mode of the framework
            self.is_same = self._are_same(found, result)
        if not self.is_same or not all(isinstance(x, self._given) for x in _leaves(result)):
            self.is_same = False
            raise Differs
        return _held(result)

    def ends(self, results: Any) -> bool:
        """Whether this run, which gives `results`, has asked for the same and gives the same."""
        is_over = next(self._left, None) is None
        return self.is_same and is_over and self._are_same(results, self.first.results)

    @property
    def _given(self) -> tuple[type, ...]:
        return self.first.tensor, *self.first.plain

    def _has_tensors(self, x: Any) -> bool:
        return any(isinstance(leaf, self.first.tensor) for leaf in _leaves(x))

    def _asks(self, known: Any, function: Any, args: Any, kwargs: Any) -> bool:
        of_mode = {key for key in kwargs if key in _OF_MODE or key == _DROPPED and not kwargs[key]}
        known_function, known_args, known_kwargs = known
        theirs = {key: x for key, x in known_kwargs.items() if key not in of_mode}
        ours = {key: x for key, x in kwargs.items() if key not in of_mode}
        return (
            function == known_function
            and kwargs.keys() == known_kwargs.keys()
            and self._are_same(args, known_args)
            and self._are_same(ours, theirs)
        )

    def _are_same(self, x: Any, y: Any) -> bool:
        if x is y:
            return True
        if type(x) is not type(y):
            return False
        if isinstance(x, float):
            return x.hex() == y.hex()
        if isinstance(x, (list, tuple)):
            return len(x) == len(y) and all(map(self._are_same, x, y))
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(self._are_same(x[key], y[key]) for key in x)
        return isinstance(x, self.first.plain) and x == y


def _held(x: Any) -> Any:
    """A value, as it is now: lists may change."""
    if type(x) in (list, tuple):
        return type(x)(map(_held, x))
    return {key: _held(value) for key, value in x.items()} if type(x) is dict else x


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple, dict)):
        for item in x.values() if isinstance(x, dict) else x:
            yield from _leaves(item)
    else:
        yield x
