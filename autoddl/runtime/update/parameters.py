"""The parameters that the user's optimizer is made for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..backend import Backend


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


def one_number(backend: Backend) -> tuple[str, Any]:
    """A parameter that no model has, where an optimizer is to be made and there is none else."""
    one, _ = backend.parameter((1,), "float32", NdSbp(()), Mesh(1, 1), backend.rank, True)
    return "none", one
