"""Clipping by the global norm: the gradients of the whole model, seen as one vector.

With g the gradients of all parameters and c the largest norm allowed, the optimizer gets

    g * min(1, c / (|g| + 1e-6)),        |g|^2 = sum over all elements of g of their squares

as `clip_grad_norm_` of PyTorch and OneFlow gives it. Of a replicated gradient the first replica
counts, and of a parameter that several parts of a pipeline hold the first part's: every element
counts once, wherever the plan has put it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from ..._files import expect
from ...sbp.placement import B
from ..backend import dtype_of
from ..comm.groups import Group
from ..state import ModelState

_EPSILON = 1e-6  # PyTorch's: a gradient of zeros is divided by something


def check_norm(limit: float | None) -> None:
    """ValueError unless gradients can be clipped to the norm `limit`; None clips nothing."""
    if limit is not None:
        expect(limit, Real, "clip_grad_norm is a number, or None")
    if limit is not None and not limit > 0:
        raise ValueError(
            f"clip_grad_norm is the largest norm of the gradients and must be positive, got {limit}"
            "; float('inf') only measures it, None does not"
        )


def clip_gradients(
    states: Mapping[int, ModelState], first_holders: Mapping[str, int], limit: float, world: Group
) -> float:
    """Scale all gradients so that their norm is at most `limit`; the norm that they had.

    states:        of this rank's parts
    first_holders: tied parameters -> the first part that holds them
    world:         all ranks of the job, which call this together
    """
    norm = gradient_norm(states, first_holders, world)
    factor = limit / (norm + _EPSILON)
    if not factor >= 1.0:  # what is no number spreads, as in one process
        for state in states.values():
            for name in state.gradients:  # not in place: two names may have one tensor
                state.gradients[name] = state.gradients[name] * factor
    return norm


def gradient_norm(
    states: Mapping[int, ModelState], first_holders: Mapping[str, int], world: Group
) -> float:
    """The norm of the whole model's gradient, the same on every rank of `world`."""
    backend = world.backend
    total = backend.zeros((1,), "float64")
    for part, state in states.items():
        for name, gradient in state.gradients.items():
            if first_holders.get(name, part) == part and _is_first_replica(state, name):
                if dtype_of(gradient) not in ("float32", "float64"):  # a square overflows early
                    gradient = backend.cast(gradient, "float32")
                squares = (gradient * gradient).sum().reshape((1,))
                total = total + backend.cast(squares, "float64")
    return math.sqrt(float(backend.to_numpy(world.all_reduce(total))[0]))


def _is_first_replica(state: ModelState, name: str) -> bool:
    """True on the first of the ranks that hold the same elements of a parameter."""
    groups = state.groups
    coords = groups.mesh.coords(groups.rank)
    return all(coords[axis] == 0 for axis in state.stored[name].nd.axes_of(B))
