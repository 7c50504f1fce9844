"""What follows from a frozen value is computed once, by functions outside of its class."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

Result = TypeVar("Result")


class Once:
    """A base of frozen values. What they keep here is no part of them and is not compared."""

    def once(self, compute: Callable[[Any], Result]) -> Result:
        """`compute(self)`, computed when it is first asked for."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        return self._known[compute]

    @cached_property
    def _known(self) -> dict[Callable[[Any], Any], Any]:
        return {}
