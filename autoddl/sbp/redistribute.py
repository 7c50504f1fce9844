"""Redistribution: NdSbp -> NdSbp as the cheapest path of collectives along mesh axes.

AutoDDL section 4.3. A path is a shortest path in the graph of the tensor's states (`states.py`),
whose edges are the legal steps (`collectives.py`). A step costs

    alpha_s + seconds_per_byte * bytes,    bytes = the larger local size before and after it,

with (alpha_s, seconds_per_byte) = price(way, axes) given by the caller, and nothing if it is local.
An all-gather therefore counts the gathered size, a reduce-scatter its input, other collectives the
local size. Ties go to fewer steps, then to the graph's fixed order of edges.

Only floating-point tensors may become Partial, which is free: one device keeps the values, the
others hold zeros. This is useful beyond Partial targets: for (S0, B, B) -> (B, S0, S0), pad, slice
and sum move half the bytes of an all-gather followed by a slice.

A path read backwards with Partial and Broadcast exchanged is a path as well (`dual`): all-gather
becomes reduce-scatter and slicing becomes padding, and vice versa, while all-reduce and all-to-all
stay. If all-gather and reduce-scatter have one price, both paths cost the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .collectives import COLLECTIVES, Collectives, Step, StepKind
from .edges import STAY, mask_axes
from .layout import (
    Bools,
    Codes,
    Floats,
    Ints,
    TensorSpec,
    check_fits,
    fullest_share,
    largest_bytes,
    split_units,
)
from .mesh import Mesh
from .placement import NdSbp
from .states import Fans, StateGraph, lengths

PriceFn = Callable[[StepKind, tuple[int, ...]], tuple[float, float]]


def without_latency(price: PriceFn) -> PriceFn:
    """The same seconds per byte, and none of latency."""
    return lambda kind, axes: (0.0, price(kind, axes)[1])


_TIE = 1e-12  # relative: costs nearer than this are equal, they differ by rounding only


def dual(codes: Codes) -> Codes:
    """The states with Partial and Broadcast exchanged."""
    return np.where(codes < 0, np.int8(-3) - codes, codes)


def path_cost(
    spec: TensorSpec, source: NdSbp, steps: Sequence[Step], mesh: Mesh, price: PriceFn
) -> float:
    """Seconds that `steps` take from `source` on; uneven shards count as the largest one."""
    seconds, nd = 0.0, source
    for step in steps:
        after = step.apply(nd)
        if not step.is_free:
            codes = np.stack([nd.codes, after.codes])
            units = split_units(codes, len(spec.shape), mesh)
            local, _ = largest_bytes(spec, units, fullest_share(codes, mesh))
            alpha, per_byte = price(step.way, step.axes)
            seconds += alpha + per_byte * float(local.max())
        nd = after
    return seconds


def cheapest_path(
    spec: TensorSpec,
    source: NdSbp,
    target: NdSbp,
    mesh: Mesh,
    price: PriceFn,
    collectives: Collectives = COLLECTIVES,
) -> tuple[Step, ...]:
    """The cheapest steps from `source` to `target`. For many calls make one `PathTable`.

    Raises ValueError if a placement does not fit the tensor and the mesh, or if no steps lead to
    `target` (a tensor of integers cannot become Partial).
    """
    return PathTable(mesh, price, collectives).path(spec, source, target)


@dataclass
class PathTable:
    """Cheapest paths on one mesh at given prices; caches results and what tensors can share."""

    mesh: Mesh
    price: PriceFn
    collectives: Collectives = COLLECTIVES
    _graphs: dict[int, StateGraph] = field(default_factory=dict, repr=False)
    _prices: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict, repr=False)
    _dual: dict[int, bool] = field(default_factory=dict, repr=False)
    _within: dict[tuple[int, bytes], bool] = field(default_factory=dict, repr=False)
    _by_work: dict[bool, Floats] = field(default_factory=dict, repr=False)
    _paths: dict[tuple[TensorSpec, NdSbp, NdSbp], tuple[Step, ...]] = field(
        default_factory=dict, repr=False
    )

    def seconds(
        self, spec: TensorSpec, sources: Codes, targets: Codes, *, backwards: bool | None = None
    ) -> Floats:
        """[n, m] seconds from each of `sources` [n, axes] to each of `targets` [m, axes].

        backwards: search from the targets; None searches from the side with fewer states

        The rows are codes (`NdSbp.codes`). The result is infinite where a state does not divide the
        tensor evenly or no steps lead there. ValueError if the codes do not fit the mesh and the
        tensor.
        """
        self._check_codes(spec, sources)
        self._check_codes(spec, targets)
        graph, *rows = self._graph(spec).lean.joined(sources, targets)
        (starts, start_of), (ends, end_of) = (np.unique(r, return_inverse=True) for r in rows)
        local, even = largest_bytes(spec, graph.units, graph.fullest)
        by_size = np.argsort(-local, kind="stable")
        if len(starts) > len(ends) if backwards is None else backwards:
            weights = self._weights(spec, graph.entering, local, even)
            length = lengths(*weights, by_size, ends, starts).T
        else:
            weights = self._weights(spec, graph.leaving, local, even)
            length = lengths(*weights, by_size, starts, ends)
        length[~even[starts]] = np.inf
        length[:, ~even[ends]] = np.inf
        return length[np.ix_(start_of, end_of)]

    def has_duals(self, spec: TensorSpec, *codes: Codes) -> bool:
        """True if prices between these states equal those between the dual states."""
        ndim = len(spec.shape)
        if not spec.is_float or not all(self._in_core(ndim, some) for some in codes):
            return False
        if ndim not in self._dual:
            inverses, axes = self.collectives.inverses, self.mesh.num_axes
            present = np.flatnonzero(np.bincount(self._graph_of(ndim).leaving.work)).tolist()
            self._dual[ndim] = all(
                any(self._price(kind, mask) == self._price(back, mask) for back in inverses[kind])
                for kind, mask in (divmod(work, 1 << axes) for work in present)
                if kind != STAY and inverses[kind] and kind not in inverses[kind]
            )
        return self._dual[ndim]

    def _in_core(self, ndim: int, codes: Codes) -> bool:
        key = ndim, codes.tobytes()
        if key not in self._within:
            self._within[key] = bool((self._graph_of(ndim).rows(codes) >= 0).all())
        return self._within[key]

    def path(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[Step, ...]:
        """The steps of the cheapest path; of equally cheap paths the one with fewest steps.

        All states between two even ones are even; if the source or the target is uneven, all may
        be. Raises ValueError if a placement does not fit, or if no steps lead to `target`.
        """
        asked = spec, source, target
        if asked not in self._paths:
            self._paths[asked] = self._path(*asked)
        return self._paths[asked]

    def _path(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[Step, ...]:
        check_fits(spec.shape, source, self.mesh)
        check_fits(spec.shape, target, self.mesh)
        if source == target:
            return ()
        graph, (start,), (end,) = self._graph(spec).joined(source.codes[None], target.codes[None])
        local, even = largest_bytes(spec, graph.units, graph.fullest)
        allowed = even if even[start] and even[end] else np.ones_like(even)
        weights = self._weights(spec, graph.lean.leaving, local, allowed)
        distance = lengths(*weights, np.argsort(-local, kind="stable"), np.array([start]))[0]
        if np.isinf(distance[end]):
            raise ValueError(
                f"no steps lead from {source} to {target} for {spec} on {self.mesh}; "
                "only floating-point tensors can become Partial"
            )
        slack = _TIE * distance[end]
        fans = graph.entering
        tight: list[Ints] = []  # edges of shortest paths, by the steps that are left before them
        level = np.array([end])
        reached = np.arange(len(graph.codes)) == end
        while not reached[start]:
            assert len(level), "a shortest path consists of tight edges"
            first, after = fans.begins[level].tolist(), fans.begins[level + 1].tolist()
            edges = np.concatenate(list(map(np.arange, first, after)))
            far = fans.far[edges]
            reach = distance[far] + self._edge_seconds(spec, fans, local, edges)
            is_tight = reach <= distance[fans.near[edges]] + slack
            assert fans.order is not None
            tight.append(fans.order[edges[is_tight]])
            sources = np.unique(far[is_tight])
            level = sources[~reached[sources]]
            reached[level] = True
        return _fewest(graph, tight, int(start))

    def _weights(
        self, spec: TensorSpec, fans: Fans, local: Floats, allowed: Bools
    ) -> tuple[Ints, Ints, Floats]:
        """The edges between allowed states: where those of each begin, their ends, seconds.

        local: [states] bytes of the largest part
        """
        if allowed.all():
            return fans.begins, fans.far, self._edge_seconds(spec, fans, local)
        edges = np.flatnonzero(allowed.take(fans.near) & allowed.take(fans.far))
        begins = np.searchsorted(edges, fans.begins)
        return begins, fans.far.take(edges), self._edge_seconds(spec, fans, local, edges)

    def _edge_seconds(
        self, spec: TensorSpec, fans: Fans, local: Floats, edges: Ints | None = None
    ) -> Floats:
        """Seconds of some edges, or of all."""
        near, far, work = fans.near, fans.far, fans.work
        if edges is not None:
            near, far, work = near.take(edges), far.take(edges), work.take(edges)
        known = self._by_work.get(spec.is_float)
        if known is None:
            count = Collectives.MOST + 1 << self.mesh.num_axes
            known = self._by_work[spec.is_float] = np.full((2, count), np.nan)
        alpha_s = known[0].take(work)
        is_new = np.isnan(alpha_s)
        if is_new.any():
            for number in np.unique(work[is_new]).tolist():
                known[:, number] = self._price_of(number, spec.is_float)
            alpha_s = known[0].take(work)
        return alpha_s + known[1].take(work) * np.maximum(local.take(near), local.take(far))

    def _price_of(self, work: int, is_float: bool) -> tuple[float, float]:
        """Latency and seconds per byte of edges of this work; infinite where there are none."""
        kind, mask = divmod(work, 1 << self.mesh.num_axes)
        if kind != STAY and not is_float and self.collectives.entries[kind].pads:
            return np.inf, 0.0
        return self._price(kind, mask)

    def _graph(self, spec: TensorSpec) -> StateGraph:
        return self._graph_of(len(spec.shape))

    def _graph_of(self, ndim: int) -> StateGraph:
        if ndim not in self._graphs:
            self._graphs[ndim] = StateGraph.core(self.mesh, ndim, self.collectives)
        return self._graphs[ndim]

    def _price(self, kind_index: int, mask: int) -> tuple[float, float]:
        key = kind_index, mask
        if key not in self._prices:
            entry = None if kind_index == STAY else self.collectives.entries[kind_index]
            if entry is None or entry.is_local:
                self._prices[key] = 0.0, 0.0
            else:
                self._prices[key] = self.price(entry.way, mask_axes(mask))
        return self._prices[key]

    def _check_codes(self, spec: TensorSpec, codes: Codes) -> None:
        if codes.ndim != 2 or codes.shape[1] != self.mesh.num_axes:
            raise ValueError(
                f"placement codes for the mesh {self.mesh} are an array [n, {self.mesh.num_axes}], "
                f"got {list(codes.shape)}"
            )
        if codes.size and (codes.min() < -2 or codes.max() >= len(spec.shape)):
            raise ValueError(
                f"placement codes of {spec} are -2 to {len(spec.shape) - 1}, "
                f"got {codes.min()} to {codes.max()}"
            )


def _fewest(graph: StateGraph, tight: Sequence[Ints], row: int) -> tuple[Step, ...]:
    """The path of fewest steps from `row` on; ties go to the edge that comes first.

    tight: edges of shortest paths, by the number of steps that remain after them
    """
    steps: list[Step] = []
    for edges in reversed(tight):
        edge = int(edges[graph.src[edges] == row].min())
        if graph.kind[edge] != STAY:
            steps.append(graph.step(edge))
        row = int(graph.dst[edge])
    return tuple(steps)
