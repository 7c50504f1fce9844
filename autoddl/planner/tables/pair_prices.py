"""Seconds of the cheapest path for every pair of placements of two tables, computed once.

Many edges carry tensors of one shape, each forward and backward. `ask` collects what a problem
needs, and the first `seconds` of a tensor answers all of it by one search per distinct source:
sources of several edges are shared, and of a pair of tables (s -> t) and its dual (t' -> s', see
`sbp.redistribute`) the one is taken that adds fewer sources. The gradient's way back along an edge
is mostly the dual of the way forward, so that it adds none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...sbp.collectives import COLLECTIVES, Collectives
from ...sbp.edges import distinct_pairs
from ...sbp.layout import Shape, TensorSpec, divides_evenly, is_even, split_units
from ...sbp.mesh import Mesh
from ...sbp.path_bounds import PathBounds
from ...sbp.placement import NdSbp
from ...sbp.redistribute import PathTable, PriceFn, dual, without_latency
from ...search.problem import Table

Codes = NDArray[np.int8]
Keys = NDArray[np.bytes_]


class Prices(Protocol):
    """Seconds between placements: exact (`PairPrices`), or lower bounds (`sbp.path_bounds`)."""

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None: ...

    def ask_rows(self, spec: TensorSpec, given: Codes, kept: Codes) -> None: ...

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Table: ...

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Table: ...

    def by_bytes(self, spec: TensorSpec) -> Prices: ...


@dataclass(frozen=True)
class _Answers:
    """Seconds from each of `sources` to each of `targets`, both in ascending order of keys."""

    sources: Keys
    targets: Keys
    seconds: Table

    def find(self, sources: Keys, targets: Keys) -> Table | None:
        rows = _find(self.sources, sources)
        columns = None if rows is None else _find(self.targets, targets)
        if rows is None or columns is None:
            return None
        return self.seconds[rows[:, None], columns]


@dataclass
class _Union:
    """Keys of the states that searches start from, and of those that they lead to."""

    starts: dict[bytes, None] = field(default_factory=dict)
    ends: dict[bytes, None] = field(default_factory=dict)

    def missing(self, starts: Codes) -> int:
        return sum(key not in self.starts for key in _keys(starts).tolist())

    def add(self, starts: Codes, ends: Codes) -> None:
        self.starts.update(dict.fromkeys(_keys(starts).tolist()))
        self.ends.update(dict.fromkeys(_keys(ends).tolist()))


@dataclass
class PairPrices:
    """Path prices on one mesh, remembered by tensor and placements."""

    mesh: Mesh
    price: PriceFn
    collectives: Collectives = COLLECTIVES
    _asked: dict[TensorSpec, list[tuple[Codes, Codes]]] = field(default_factory=dict, repr=False)
    _answers: dict[TensorSpec, list[_Answers]] = field(default_factory=dict, repr=False)
    _evens: dict[tuple[Shape, bytes], bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.paths = PathTable(self.mesh, self.price, self.collectives)

    @cached_property
    def least(self) -> PathBounds:
        """Lower bounds of these prices, which must depend on extents and links only."""
        return PathBounds(self.mesh, self.price, self.collectives)

    def by_bytes(self, spec: TensorSpec) -> Prices:
        """Lower bounds at the same seconds per byte, and no latencies, of a tensor like that."""
        return self.least.by_bytes(spec) if self.least.fits(len(spec.shape)) else self._by_bytes

    @cached_property
    def _by_bytes(self) -> PairPrices:
        return PairPrices(self.mesh, without_latency(self.price), self.collectives)

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None:
        """Announce that `seconds` will be called with these."""
        if self.mesh.num_axes and self._known(spec, sources, targets) is None:
            self._asked.setdefault(spec, []).append((_distinct(sources), _distinct(targets)))

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Table:
        """[n, m] seconds from each row of `sources` [n, axes] to each of `targets` [m, axes]."""
        if self.mesh.num_axes == 0:
            return np.zeros((len(sources), len(targets)))
        found = self._known(spec, sources, targets)
        if found is None:
            self.ask(spec, sources, targets)
            self._answer(len(spec.shape))
            found = self._find(spec, sources, targets)
            assert found is not None
        return found

    def ask_rows(self, spec: TensorSpec, given: Codes, kept: Codes) -> None:
        """Announce that `row_seconds` will be called with these."""
        moves = (given != kept).any(axis=1)
        if moves.any():
            self.ask(spec, _distinct(given[moves]), _distinct(kept[moves]))

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Table:
        """[n] seconds from each row of `given` to the same row of `kept`."""
        even = divides_evenly(spec.shape, split_units(kept, len(spec.shape), self.mesh))
        seconds = np.where(even, 0.0, np.inf)
        moves = (given != kept).any(axis=1)
        if moves.any():
            first, which = distinct_pairs(given[moves], kept[moves])
            sources, row = np.unique(_keys(given[moves][first]), return_inverse=True)
            targets, column = np.unique(_keys(kept[moves][first]), return_inverse=True)
            states = self._codes(sources.tolist()), self._codes(targets.tolist())
            seconds[moves] = self.seconds(spec, *states)[row, column][which]
        return seconds

    def _known(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Table | None:
        first = sources[:1]
        if (sources == first).all() and (targets == first).all():  # nothing moves
            seconds = 0.0 if self._is_even(spec, first[0]) else np.inf
            return np.full((len(sources), len(targets)), seconds)
        return self._find(spec, sources, targets)

    def _is_even(self, spec: TensorSpec, codes: Codes) -> bool:
        key = spec.shape, codes.tobytes()
        if key not in self._evens:
            self._evens[key] = is_even(spec.shape, NdSbp.from_codes(codes), self.mesh)
        return self._evens[key]

    def _find(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Table | None:
        known = self._answers.get(spec)
        if known is None:
            return None
        asked = _keys(sources), _keys(targets)
        for answers in known:
            found = answers.find(*asked)
            if found is not None:
                return found
        mirrored = _keys(dual(targets)), _keys(dual(sources))
        for answers in known:
            found = answers.find(*mirrored)
            if found is not None and self.paths.has_duals(spec, sources, targets):
                return found.T
        return None

    def _answer(self, ndim: int) -> None:
        """Price all that was asked for tensors of so many dims."""
        for spec in [spec for spec in self._asked if len(spec.shape) == ndim]:
            for union, backwards in zip(self._unions(spec), (False, True), strict=True):
                if union.starts:
                    rows, columns = self._codes(union.starts), self._codes(union.ends)
                    if backwards:
                        rows, columns = columns, rows
                    seconds = self.paths.seconds(spec, rows, columns, backwards=backwards)
                    found = _Answers(_keys(rows), _keys(columns), seconds)
                    self._answers.setdefault(spec, []).append(found)

    def _unions(self, spec: TensorSpec) -> tuple[_Union, _Union]:
        """What was asked for `spec` in two tables: searched from sources, and from targets."""
        tables: tuple[_Union, _Union] = (_Union(), _Union())
        for first, second in sorted(self._asked.pop(spec), key=lambda pair: -sum(map(len, pair))):
            ways = [(tables[0], first, second), (tables[1], second, first)]
            if self.paths.has_duals(spec, first, second):
                ways[1] = (tables[0], dual(second), dual(first))
            new = [union.missing(starts) for union, starts, _ in ways]
            union, starts, ends = ways[int(np.argmin(new))]
            union.add(starts, ends)
        return tables

    def _codes(self, keys: Iterable[bytes]) -> Codes:
        """The rows of the given keys, ascending."""
        codes = np.frombuffer(b"".join(sorted(keys)), dtype=np.uint8) - np.uint8(3)
        return codes.view(np.int8).reshape(-1, self.mesh.num_axes)


def _keys(codes: Codes) -> Keys:
    """One key of bytes per row; no byte is zero, which would be lost at the end of a key."""
    shifted = np.ascontiguousarray(codes + np.int8(3))
    return shifted.view(f"S{codes.shape[1]}").reshape(len(codes))


def _find(known: Keys, wanted: Keys) -> NDArray[np.int64] | None:
    """Positions of `wanted` in the ascending `known`; None if any is missing."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at if (known[at] == wanted).all() else None


def _distinct(codes: Codes) -> Codes:
    return codes[np.sort(np.unique(_keys(codes), return_index=True)[1])]
