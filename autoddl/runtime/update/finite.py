"""Whether the loss and the gradients are finite: no infinity, and nothing that is no number (NaN).

A sum of what is not finite is not finite, and zero times that is no number: one number tells of all
tensors, each of which is read once. (Finite elements whose sum has no float32 count as infinite;
float16 has so small a range that each element is multiplied instead.) Of a gradient that several
ranks have alike one of them reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..backend import Backend, Tensor, dtype_of
from ..comm.groups import Group
from ..state import ModelState, has_turn

ON_NONFINITE = ("raise", "skip", "ignore")
# Elements of a vector that is read with others: up to 4,096 its sum takes what the call does, 5 us,
# of 65,536 12 us.
_SMALL = 1 << 14


def check_choice(on_nonfinite: str) -> None:
    """ValueError unless it is one of `ON_NONFINITE`."""
    if not isinstance(on_nonfinite, str) or on_nonfinite not in ON_NONFINITE:
        raise ValueError(
            f"on_nonfinite is what happens when the loss or a gradient is not finite: "
            f"{', '.join(map(repr, ON_NONFINITE))}; got {on_nonfinite!r}"
        )


def health(tensors: Iterable[Tensor], backend: Backend) -> Tensor:
    """Float64 [1]: zero if all elements of the local tensors are finite, else no number."""
    alike: dict[str, list[Tensor]] = {}
    for x in tensors:
        alike.setdefault(dtype_of(x), []).append(x)
    found = [backend.zeros((1,), "float64")]
    with backend.no_grad():
        for dtype, own in alike.items():
            vectors = [x for x in own if x.ndim == 1 and len(x) <= _SMALL]
            if vectors:
                others = (x for x in own if x.ndim != 1 or len(x) > _SMALL)
                own = [*others, backend.cat(vectors, 0)]
            if dtype == "float16":
                own = [x * 0.0 for x in own]
            sums = backend.cat([x.sum().reshape((1,)) for x in own], 0)
            found.append(backend.cast((sums * 0.0).sum().reshape((1,)), "float64"))
        return backend.cat(found, 0).sum().reshape((1,))


def looked_at(state: ModelState) -> list[str]:
    """The trained parameters whose gradients this rank reads, for itself and those that have it."""
    trained = [(name, one.nd) for name, one in state.stored.items() if one.parameter is not None]
    return [name for n, (name, nd) in enumerate(trained) if has_turn(nd, state.groups, n)]


def all_finite(tensors: Iterable[Tensor], world: Group) -> bool:
    """True on every rank of `world` if all elements of all ranks' tensors are finite."""
    total = world.all_reduce(health(tensors, world.backend))
    return bool(np.isfinite(world.backend.to_numpy(total)[0]))
