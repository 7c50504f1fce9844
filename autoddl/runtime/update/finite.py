"""Whether the loss and the gradients are finite: no infinity, and nothing that is no number (NaN).

A sum of what is not finite is not finite, and zero times that is no number: one number tells of all
tensors, each of which is read once. (Finite elements whose sum has no float32 count as infinite;
float16 has so small a range that each element is multiplied instead.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..backend import Backend, Tensor, dtype_of
from ..comm.groups import Group

ON_NONFINITE = ("raise", "skip", "ignore")


def check_choice(on_nonfinite: str) -> None:
    """ValueError unless it is one of `ON_NONFINITE`."""
    if not isinstance(on_nonfinite, str) or on_nonfinite not in ON_NONFINITE:
        raise ValueError(
            f"on_nonfinite is what happens when the loss or a gradient is not finite: "
            f"{', '.join(map(repr, ON_NONFINITE))}; got {on_nonfinite!r}"
        )


def health(tensors: Iterable[Tensor], backend: Backend) -> Tensor:
    """Float64 [1]: zero if all elements of the local tensors are finite, else no number."""
    sums = [backend.zeros((1,), "float64")]
    with backend.no_grad():
        for x in tensors:
            alike = x * 0.0 if dtype_of(x) == "float16" else x
            sums.append(backend.cast(alike.sum().reshape((1,)), "float64"))
        return (backend.cat(sums, 0) * 0.0).sum().reshape((1,))


def all_finite(tensors: Iterable[Tensor], world: Group) -> bool:
    """True on every rank of `world` if all elements of all ranks' tensors are finite."""
    total = world.all_reduce(health(tensors, world.backend))
    return bool(np.isfinite(world.backend.to_numpy(total)[0]))
