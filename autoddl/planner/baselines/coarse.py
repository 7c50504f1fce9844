"""Path prices between placements that are alike on all axes of a kind.

A scheme labels all its data axes alike, and all its tensor axes. So its placements live on a coarse
mesh of a few axes, each a run of axes of one kind and one link class, which has few states. The
shortest paths on that mesh are paths on the cluster's mesh too: `CoarsePrices.seconds` is what they
cost, exact but for paths that treat axes of one kind differently.

A step along a coarse axis is one collective, or one for each of its axes in turn, whatever is
cheaper: with n bytes in full and axes of extents p_1, p_2, ... an all-gather of the minor axes
first sees n / (p_1 ... p_j-1) bytes at axis j, in all no more than at once and in fewer rounds.

Distances D [topology, source, state] are relaxed by the steps W of each topology:

    D <- min(D, min_m D[., ., m] + W[., m, .])     over what changed, until nothing does
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...cost.collectives import CommModel
from ...sbp.collectives import Collective, Collectives
from ...sbp.edges import edges_between, mask_axes
from ...sbp.layout import TensorSpec, divides_evenly, num_parts
from ...sbp.mesh import Mesh
from ..tables.pair_prices import PairPrices

Codes = NDArray[np.int8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def coarse_axes(mesh: Mesh, tensor_axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The axes of the coarse mesh: runs of neighbouring axes of one link class and one kind."""
    kinds = [(mesh.axes[a].link, a in tensor_axes) for a in range(mesh.num_axes)]
    runs = itertools.groupby(range(mesh.num_axes), key=lambda a: kinds[a])
    return tuple(tuple(members) for _, members in runs)


@lru_cache(maxsize=32)
def _states(num_axes: int, ndim: int, collectives: Collectives) -> tuple[Codes, Ints]:
    """All states of a mesh of `num_axes` axes, in ascending order, and the legal steps."""
    count = (ndim + 2) ** num_axes
    rows = np.indices((ndim + 2,) * num_axes, dtype=np.int8).reshape(num_axes, count).T
    codes = np.ascontiguousarray(rows) - np.int8(2)
    return codes, edges_between(codes, codes, ndim, collectives)


def shortest(steps: Floats, sources: Ints) -> Floats:
    """[topology, source, state] lengths of shortest paths by steps [topology, state, state]."""
    found = steps[:, sources]
    for rows, own in zip(found, steps, strict=True):
        for lengths in rows:
            (reached,) = np.isfinite(lengths).nonzero()
            while len(reached):  # what became nearer may bring others nearer
                tries = (lengths[reached, None] + own[reached]).min(axis=0)
                nearer = tries < lengths
                lengths[nearer] = tries[nearer]
                (reached,) = nearer.nonzero()
    return found


@dataclass
class _Meshes:
    """The coarse meshes of one number of axes, with the prices of steps on them."""

    comm: CommModel
    runs: list[tuple[tuple[int, ...], ...]]  # topology -> coarse axis -> axes
    _distances: dict[Hashable, tuple[Floats, Ints]] = field(default_factory=dict)
    _steps: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mesh = self.comm.mesh
        self.num_axes = len(self.runs[0])
        self.first = np.array([[axes[0] for axes in run] for run in self.runs], dtype=np.int64)
        runs = [[[mesh.axes[a] for a in axes] for axes in run] for run in self.runs]
        self.units = np.array([[math.prod(a.units for a in axes) for axes in run] for run in runs])
        self.parts = np.array([[math.prod(a.parts for a in axes) for axes in run] for run in runs])
        # The coarse axis of each axis, to find the placements that a topology has.
        self.coarse_of = np.zeros((len(self.runs), mesh.num_axes), dtype=np.int64)
        for k, run in enumerate(self.runs):
            for n, axes in enumerate(run):
                self.coarse_of[k, list(axes)] = n

    def rows(self, codes: Codes, ndim: int) -> Ints:
        """[topology, n]: each placement as a state; -1 where a topology does not have it."""
        found = np.full((len(self.runs), len(codes)), -1, dtype=np.int64)
        powers = (ndim + 2) ** np.arange(self.num_axes - 1, -1, -1, dtype=np.int64)
        for k in range(len(self.runs)):
            coarse = codes[:, self.first[k]]
            alike = (coarse[:, self.coarse_of[k]] == codes).all(axis=1)
            found[k, alike] = (coarse[alike].astype(np.int64) + 2) @ powers
        return found

    def distances(self, spec: TensorSpec, sources: Ints) -> tuple[Floats, Ints]:
        """([topology, source, state] seconds, the position of each state among the sources)."""
        known = self._distances.get(spec)
        missing = sources if known is None else sources[known[1][sources] < 0]
        if len(missing) or known is None:
            found = shortest(self._weights(spec), missing)
            size = found.shape[2]
            before = np.zeros((len(self.runs), 0, size)) if known is None else known[0]
            position = np.full(size, -1, dtype=np.int64) if known is None else known[1].copy()
            position[missing] = before.shape[1] + np.arange(len(missing))
            known = self._distances[spec] = np.concatenate([before, found], axis=1), position
        return known

    def _weights(self, spec: TensorSpec) -> Floats:
        """[topology, state, state] seconds of one step; infinite where there is none."""
        ndim = len(spec.shape)
        codes, (src, dst, kind, mask) = _states(self.num_axes, ndim, self.comm.collectives)
        splits = codes[:, None, :] == np.arange(ndim)[:, None]
        units = num_parts(splits, self.units[:, None, None, :])  # [topology, state, dim]
        parts = num_parts(splits, self.parts[:, None, None, :])
        even = divides_evenly(spec.shape, units)
        bytes_ = spec.bytes / parts.prod(axis=2)
        moved = np.maximum(bytes_[:, src], bytes_[:, dst])
        alpha_s, per_byte = self._prices(ndim)
        seconds = (alpha_s + per_byte * moved).min(axis=0)
        seconds[~(even[:, src] & even[:, dst])] = np.inf
        if not spec.is_float:
            pads = self.comm.collectives.where(lambda entry: entry.pads)
            seconds[:, np.isin(kind, pads)] = np.inf
        size = len(codes)
        weights = np.full((len(self.runs), size, size), np.inf)
        defaults = np.array(self.comm.collectives.defaults)
        rank = np.arange(len(defaults)) - defaults  # 0 for the default way
        for own in np.unique(rank):  # at most one step of it leads from a state to another
            at = np.flatnonzero(rank[kind] == own)
            to = slice(None), src[at], dst[at]
            weights[to] = np.minimum(weights[to], seconds[:, at])
        weights[:, np.arange(size), np.arange(size)] = np.where(even, 0.0, np.inf)
        return weights

    def _prices(self, ndim: int) -> tuple[Floats, Floats]:
        """[way, topology, step] seconds of latency and per byte: at once, and axis by axis."""
        if ndim not in self._steps:
            _, (_, _, kind, mask) = _states(self.num_axes, ndim, self.comm.collectives)
            groups, which = np.unique(np.stack([kind, mask]), axis=1, return_inverse=True)
            prices = np.zeros((2, 2, len(self.runs), groups.shape[1]))
            for k, run in enumerate(self.runs):
                for n, (number, axes_mask) in enumerate(groups.T):
                    step = self.comm.collectives.entries[number]
                    if not step.is_local:
                        axes = tuple(a for c in mask_axes(int(axes_mask)) for a in run[c])
                        prices[:, 0, k, n] = self.comm.price(step.way, axes)
                        prices[:, 1, k, n] = self._in_turn(step, axes)
            alpha_s, per_byte = prices[..., which.ravel()]
            self._steps[ndim] = alpha_s, per_byte
        return self._steps[ndim]

    def _in_turn(self, entry: Collective, axes: tuple[int, ...]) -> tuple[float, float]:
        """(seconds, seconds per byte) of one collective for each axis; inf where there is none.

        All-to-alls in turn would leave the second dim's pieces nested the wrong way round.
        """
        if entry.moves_split and len(axes) > 1:
            return np.inf, 0.0
        alpha_s, per_byte, parts = 0.0, 0.0, 1
        for axis in axes:
            alpha, beta = self.comm.price(entry.way, (axis,))
            alpha_s, per_byte = alpha_s + alpha, per_byte + beta / parts
            if entry.divides or entry.joins:
                parts *= self.comm.mesh.parts[axis]
        return alpha_s, per_byte


class CoarsePrices(PairPrices):
    """`PairPrices` for the placements of schemes, see the module docstring.

    topologies: the tensor axes of each scheme; placements of no common topology cost inf
    """

    def __init__(self, comm: CommModel, topologies: Sequence[tuple[int, ...]]) -> None:
        super().__init__(comm.mesh, comm.price, comm.collectives)
        by_size: dict[int, list[tuple[tuple[int, ...], ...]]] = {}
        for tensor_axes in topologies:
            run = coarse_axes(comm.mesh, tensor_axes)
            by_size.setdefault(len(run), []).append(run)
        self._meshes = [_Meshes(comm, list(dict.fromkeys(runs))) for runs in by_size.values()]

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None:
        """Nothing is gained by knowing questions beforehand."""

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Floats:
        """[n] seconds from each row of `given` to the same row of `kept`."""
        axes = self.mesh.num_axes
        pairs, inverse = np.unique(np.hstack([given, kept]), axis=0, return_inverse=True)
        both = self.seconds(spec, pairs[:, :axes], pairs[:, axes:])
        return np.diagonal(both)[inverse.ravel()]

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Floats:
        """[n, m] seconds from each row of `sources` [n, axes] to each of `targets` [m, axes]."""
        seconds = np.full((len(sources), len(targets)), np.inf)
        ndim = len(spec.shape)
        for meshes in self._meshes:
            start, end = meshes.rows(sources, ndim), meshes.rows(targets, ndim)
            distances, position = meshes.distances(spec, np.unique(start[start >= 0]))
            for k in range(len(meshes.runs)):
                own, to = np.flatnonzero(start[k] >= 0), np.flatnonzero(end[k] >= 0)
                if len(own) and len(to):
                    at = np.ix_(own, to)
                    found = distances[k][np.ix_(position[start[k, own]], end[k, to])]
                    seconds[at] = np.minimum(seconds[at], found)
        return seconds
