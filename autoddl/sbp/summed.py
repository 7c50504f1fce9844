"""Seconds of summing a Partial tensor up, in closed form where one is proven.

A gradient that is Partial on axes of p devices in all and split on the others becomes Broadcast
there by reduce-scatters, one axis after the other, and all-gathers back. Its n local bytes cost

    2 sum_a alpha(a) + 2 (p - 1) / p n beta

on a mesh of one link class with ring prices. Nothing is cheaper: summing needs 2 (p - 1) / p n
bytes through each device, and every Partial axis has to be reduced and gathered by some step, which
costs no less than alpha(a) for each of its axes.
"""

from __future__ import annotations

import numpy as np

from .collectives import StepKind
from .edges import mask_axes
from .layout import Bools, Codes, Floats, TensorSpec, largest_bytes, num_parts, split_parts
from .mesh import Mesh
from .redistribute import PriceFn

_TIE = 1e-12


def summed_seconds(
    mesh: Mesh, price: PriceFn, spec: TensorSpec, given: Codes, kept: Codes
) -> Floats:
    """[n] seconds from each row of `given` to the same row of `kept`; NaN where no proof holds.

    For meshes and prices of which `is_ring` holds. It is proven if the rows are equal, or if they
    differ in P -> B only, no axis of `given` is B, and some dim can be scattered along all Partial
    axes.
    """
    seconds = np.full(len(given), np.nan)
    ndim = len(spec.shape)
    sizes = np.array(spec.shape, dtype=np.int64)
    parts = split_parts(kept, ndim, mesh)
    bytes_, even = largest_bytes(spec, parts)
    seconds[(given == kept).all(axis=1) & even] = 0.0
    partial = given == -2
    sums = partial & (kept == -1)
    candidate = even & partial.any(axis=1) & (sums | ((given == kept) & (given >= 0))).all(axis=1)
    if not candidate.any():
        return seconds
    devices = num_parts(partial, mesh.extents)
    first = partial.argmax(axis=1)
    after = np.arange(mesh.num_axes) > first[:, None]
    scattered: Bools = np.zeros(len(given), dtype=bool)
    for dim in range(ndim):
        free = ~((kept == dim) & after).any(axis=1)
        scattered |= free & (sizes[dim] % (parts[:, dim] * devices) == 0)
    alphas = np.array([price("all_gather", (a,))[0] for a in range(mesh.num_axes)])
    beta = price("all_gather", (0,))[1] / (1 - 1 / mesh.extents[0])
    known = candidate & scattered
    total = 2 * np.where(partial, alphas, 0.0).sum(axis=1) + 2 * (1 - 1 / devices) * bytes_ * beta
    seconds[known] = total[known]
    return seconds


def is_ring(mesh: Mesh, price: PriceFn) -> bool:
    """True if the mesh has one link class, and every collective a ring's price on it."""
    if len({axis.link for axis in mesh.axes}) != 1:
        return False
    kinds: tuple[StepKind, ...] = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce")
    beta = price("all_gather", (0,))[1] / (1 - 1 / mesh.extents[0])
    for mask in range(1, 1 << mesh.num_axes):
        axes = mask_axes(mask)
        least = sum(price("all_gather", (a,))[0] for a in axes)
        ring = (1 - 1 / mesh.extent(axes)) * beta
        for kind in kinds:
            rounds = 2 if kind == "all_reduce" else 1
            alpha, per_byte = price(kind, axes)
            if alpha < rounds * least * (1 - _TIE) or per_byte < rounds * ring * (1 - _TIE):
                return False
    return abs(price("reduce_scatter", (0,))[1] - price("all_gather", (0,))[1]) <= _TIE * beta
