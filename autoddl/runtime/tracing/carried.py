"""What a forward pass leaves in Python for the next one."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_PLAIN = bool, int, float, str
_CONTAINERS = list, dict, set, deque
_RESTORED = *_CONTAINERS, OrderedDict  # of hooks, too, which transformers adds when first called
_NOT_CARRIED = "_parameters", "_buffers", "_modules", "training"


class Drawn:
    """Whether Python's generator of random numbers, or NumPy's, has been asked for some.

    A plan, which records one pass, would go on with those that were drawn then.
    """

    def __init__(self) -> None:
        self._before = random.getstate(), np.random.get_state()

    def check(self) -> None:
        """ValueError if one has."""
        state = random.getstate(), np.random.get_state()
        if state[0] != self._before[0] or str(state[1]) != str(self._before[1]):
            raise ValueError(
                "the model's forward pass draws numbers from Python's random or NumPy's, and a "
                "plan, which records one pass, would go on with the first ones; draw with the "
                "framework's operators (Dropout, rand), or outside of the model as an input"
            )

    def restore(self) -> None:
        """The generators are as they were."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])


class Carried:
    """What a model's modules hold in Python beside parameters, buffers and modules.

    A trace records one forward pass. What a pass leaves for the next one, such as a counter or the
    last hidden state, would be lost without a word, and is refused: a second pass tells it from
    what is made once, or only kept to be looked at. So are numbers that are `Drawn`.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]], kind: type) -> None:
        """Of the modules, by their paths; kind: of tensors."""
        self._tables = {path: module.__dict__ for path, module in modules}
        self._kind = kind
        self._before = self._after = self._now()
        self._contents = {
            key: (value, value.copy())
            for key, (value, _) in self._before.items()
            if type(value) in _RESTORED
        }
        self._drawn = Drawn()
        self._refused = ""

    def has_changed(self) -> bool:
        """Whether a pass has left something."""
        self._after = self._now()
        return bool(_changed(self._before, self._after))

    @property
    def left(self) -> list[Any]:
        """What the first pass has left, and what is in it."""
        return [x for key in _changed(self._before, self._after) for x in self._after[key][1]]

    def after_second(self, read: set[int]) -> None:
        """Another pass has run; read: ids of the tensors that it has read."""
        now = self._now()
        for key in _changed(self._after, now):
            old, new = self._after[key][1], now[key][1]
            counts = [
                (x, y)
                for x, y in zip(old, new, strict=False)
                if isinstance(x, _PLAIN) and isinstance(y, _PLAIN) and x != y
            ]
            if counts or any(isinstance(x, self._kind) and id(x) in read for x in old):
                self._refused = self._refused or ".".join(filter(None, key))

    def check(self) -> None:
        """ValueError if a pass leaves something for the next one."""
        name = self._refused.removeprefix("model.")
        if name:
            raise ValueError(
                f"the model's forward pass keeps {name} from one step to the next, and a plan, "
                "which records one pass, would not; give it to the model as an input and return "
                "what is to come next"
            )
        self._drawn.check()

    def restore(self) -> None:
        """The modules and generators are as they were."""
        for path, table in self._tables.items():
            for name in [n for n in table if n not in _NOT_CARRIED]:
                if (path, name) not in self._before:
                    del table[name]
        for (path, name), (value, _) in self._before.items():
            self._tables[path][name] = value
        for value, content in self._contents.values():
            if _changed({0: (0, list(_inside(content, 1)))}, {0: (0, list(_inside(value, 1)))}):
                value.clear()
                (value.extend if isinstance(value, (list, deque)) else value.update)(content)
        self._drawn.restore()

    def _now(self) -> dict[tuple[str, str], tuple[Any, list[Any]]]:
        """(module's path, name) -> the value, and what is in it."""
        return {
            (path, name): (value, _held(value))
            for path, table in self._tables.items()
            for name, value in table.items()
            if name not in _NOT_CARRIED
        }


def _held(value: Any) -> list[Any]:
    """As `_inside`; sooner for what holds nothing, as most of a module's tables of hooks."""
    if not isinstance(value, (*_CONTAINERS, tuple)):
        return [value]
    return list(_inside(value)) if value else []


def _inside(value: Any, depth: int = 3) -> Iterator[Any]:
    """A value, or what is in a container."""
    if depth and isinstance(value, (*_CONTAINERS, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _inside(item, depth - 1)
    else:
        yield value


def _changed(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> list[Any]:
    """The keys of what is another than before, or was not there."""
    missing: tuple[None, list[Any]] = None, [None]
    return [
        key
        for key, (_, inside) in new.items()
        if len(inside) != len(before := old.get(key, missing)[1])
        or any(map(_differs, inside, before))
    ]


def _differs(x: Any, y: Any) -> bool:
    return x is not y and not (isinstance(x, _PLAIN) and isinstance(y, _PLAIN) and x == y)
