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
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .collectives import COLLECTIVES, Collectives, Step, StepKind
from .edges import STAY, mask_axes, row_numbers
from .layout import (
    Codes,
    Floats,
    Ints,
    TensorSpec,
    check_fits,
    is_even,
    largest_bytes,
    split_parts,
)
from .mesh import Mesh
from .placement import NdSbp
from .priced_graph import PricedGraph, priced_graph
from .shortest_paths import lengths, lengths_of
from .states import StateGraph
from .symmetry import alike_dims, divisibility, first_names, rename

PriceFn = Callable[[StepKind, tuple[int, ...]], tuple[float, float]]

# Above so many starts, a tensor's search runs together with those of other tensors. CPU seconds of
# planning gpt_0_35b on 2x16 and dlrm on 2x8: always together 1.5 and 0.6, never 1.2 and 0.6, as it
# is 1.3 and 0.6; so it does not matter there.
_TOGETHER = 6
# Sizes of two caches, graphs with added states and rows of lengths, to bound memory: 1 or 8 graphs
# and 32 or 1,024 rows change CPU times of planning four models within noise (20 %, 0.2 s).
_JOINS = 4
_ROWS = 256
_TIE = 1e-12  # relative: costs nearer than this are equal, they differ by rounding only


def path_cost(
    spec: TensorSpec, source: NdSbp, steps: Sequence[Step], mesh: Mesh, price: PriceFn
) -> float:
    """Seconds that `steps` take from `source` on; uneven shards count as the largest one."""
    seconds, nd = 0.0, source
    for step in steps:
        after = step.apply(nd)
        if not step.is_free:
            codes = np.stack([nd.codes, after.codes])
            parts = split_parts(codes, len(spec.shape), mesh)
            alpha, per_byte = price(step.way, step.axes)
            seconds += alpha + per_byte * float(largest_bytes(spec, parts)[0].max())
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
    _joins: dict[tuple[int, bytes, bytes], tuple[StateGraph, Ints, Ints]] = field(
        default_factory=dict, repr=False
    )
    _dual: dict[int, bool] = field(default_factory=dict, repr=False)
    _within: dict[tuple[int, bytes], bool] = field(default_factory=dict, repr=False)
    _rows: dict[tuple[PricedGraph, int, int], Floats] = field(default_factory=dict, repr=False)
    _priced: dict[tuple[StateGraph, Hashable, bool], PricedGraph] = field(
        default_factory=dict, repr=False
    )
    _group_prices: dict[tuple[bytes, bool], Floats] = field(default_factory=dict, repr=False)
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
        return self.seconds_of([(spec, sources, targets, backwards)])[0]

    def seconds_of(
        self, questions: Sequence[tuple[TensorSpec, Codes, Codes, bool | None]]
    ) -> list[Floats]:
        """`seconds` of several tensors: (spec, sources, targets, backwards) each."""
        searches = [self._search(*question) for question in questions]
        return [
            search.seconds(length)
            for search, length in zip(searches, self._lengths(searches), strict=True)
        ]

    def _search(
        self, spec: TensorSpec, sources: Codes, targets: Codes, backwards: bool | None
    ) -> _Search:
        """One search per class of like starts."""
        self._check_codes(spec, sources)
        self._check_codes(spec, targets)
        graph, starts, ends = self._joined(spec, sources, targets)
        if backwards is None:
            backwards = len(np.unique(starts)) > len(np.unique(ends))
        if backwards:
            starts, ends = ends, starts
        priced = self._priced_graph(graph, spec)
        alike = alike_dims(spec.shape, self.mesh) if graph is self._graph(spec) else ()
        names = first_names(graph.codes[starts], graph.ndim, alike)
        first = graph.rows(rename(graph.codes[starts], names)) if alike else starts
        asked, which = np.unique(first, return_inverse=True)
        return _Search(priced, spec, starts, ends, backwards, names, asked, which)

    def _lengths(self, searches: Sequence[_Search]) -> list[Floats]:
        """[asked, states] of each; of many starts in one graph together."""
        found: list[Floats] = [np.empty(0)] * len(searches)
        together: dict[StateGraph, list[int]] = {}
        for number, search in enumerate(searches):
            graph = self._graph(search.spec)
            forwards = search.is_in_core and not search.backwards
            if len(search.asked) > _TOGETHER and forwards:
                together.setdefault(graph, []).append(number)
            elif forwards and len(search.asked):
                rows = [
                    self._from(search.priced, search.spec, row) for row in search.asked.tolist()
                ]
                found[number] = np.stack(rows)
            else:
                found[number] = search.lengths()
        for graph, numbers in together.items():
            if len(numbers) == 1:
                found[numbers[0]] = searches[numbers[0]].lengths()
                continue
            weights = np.full((len(graph.src), len(numbers)), np.inf)
            for column, number in zip(weights.T, numbers, strict=True):
                priced = searches[number].priced
                column[priced.edges] = priced.weights(searches[number].spec.bytes)
            asked = [searches[number].asked for number in numbers]
            which = np.repeat(np.arange(len(numbers)), list(map(len, asked)))
            lengths = lengths_of(graph, weights, np.concatenate(asked), which)
            parts = np.split(lengths, np.flatnonzero(np.diff(which)) + 1)
            for number, rows in zip(numbers, parts, strict=True):
                found[number] = rows
        return found

    def has_duals(self, spec: TensorSpec, *codes: Codes) -> bool:
        """True if prices between these states equal those between the dual states (`symmetry`)."""
        ndim = len(spec.shape)
        if not spec.is_float or not all(self._in_core(ndim, some) for some in codes):
            return False
        if ndim not in self._dual:
            inverses = self.collectives.inverses
            self._dual[ndim] = all(
                any(self._price(kind, mask) == self._price(back, mask) for back in inverses[kind])
                for kind, mask in self._graph_of(ndim).groups[0].tolist()
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
        even_only = all(is_even(spec.shape, nd, self.mesh) for nd in (source, target))
        if even_only and graph is self._graph(spec):
            distance = self._from(self._priced_graph(graph, spec), spec, int(start))
            local = spec.bytes / graph.shards
        else:
            every = np.arange(len(graph.codes))
            local, even = largest_bytes(spec, graph.parts)
            weights = self._weights(graph, spec, local, np.arange(len(graph.src)))
            if even_only:
                weights[~(even[graph.src] & even[graph.dst])] = np.inf
            distance = lengths(graph, weights, np.array([start]), every)[0]
        if np.isinf(distance[end]):
            raise ValueError(
                f"no steps lead from {source} to {target} for {spec} on {self.mesh}; "
                "only floating-point tensors can become Partial"
            )
        slack = _TIE * distance[end]
        near = distance <= distance[end] + slack
        order, begins = graph.by_target
        tight: list[Ints] = []  # edges of shortest paths, by the steps that are left before them
        level = np.array([end])
        reached = np.arange(len(graph.codes)) == end
        while not reached[start]:
            assert len(level), "a shortest path consists of tight edges"
            into = [order[begins[node] : begins[node + 1]] for node in level.tolist()]
            edges = np.concatenate(into)
            edges = edges[near[graph.src[edges]]]
            weights = self._weights(graph, spec, local, edges)
            is_tight = distance[graph.src[edges]] + weights <= distance[graph.dst[edges]] + slack
            tight.append(edges[is_tight])
            sources = np.unique(graph.src[tight[-1]])
            level = sources[~reached[sources]]
            reached[level] = True
        return _fewest(graph, tight, int(start))

    def _priced_graph(self, graph: StateGraph, spec: TensorSpec) -> PricedGraph:
        """The edges that tensors need which divide as this one."""
        key = graph, divisibility(spec.shape, self.mesh), spec.is_float
        if key not in self._priced:
            if graph.first is None:
                self._priced[key] = priced_graph(graph, spec.shape, self._prices_of(graph, spec))
            else:
                added = priced_graph(graph.added, spec.shape, self._prices_of(graph.added, spec))
                self._priced[key] = self._priced_graph(graph.first, spec).joined(graph, added)
        return self._priced[key]

    def _prices_of(self, graph: StateGraph, spec: TensorSpec) -> Floats:
        """[groups, 2] latency and seconds per byte of each of the graph's groups of edges."""
        groups = graph.groups[0]
        key = groups.tobytes(), spec.is_float
        if key not in self._group_prices:
            prices = np.array([self._price(*group) for group in groups.tolist()]).reshape(-1, 2)
            if not spec.is_float:
                prices[np.isin(groups[:, 0], self.collectives.where(lambda e: e.pads)), 0] = np.inf
            self._group_prices[key] = prices
        return self._group_prices[key]

    def _joined(
        self, spec: TensorSpec, sources: Codes, targets: Codes
    ) -> tuple[StateGraph, Ints, Ints]:
        """`StateGraph.joined`, of which tensors of other sizes often ask the same."""
        asked = len(spec.shape), sources.tobytes(), targets.tobytes()
        found = self._joins.pop(asked, None)
        if found is None:
            found = self._graph(spec).joined(sources, targets, ordered=False)
        if found[0] is not self._graph(spec):
            self._joins[asked] = found  # the last one asked for is the last to go
            if len(self._joins) > _JOINS:
                gone = self._joins.pop(next(iter(self._joins)))[0]
                self._priced = {
                    key: kept for key, kept in self._priced.items() if key[0] is not gone
                }
        return found

    def _graph(self, spec: TensorSpec) -> StateGraph:
        return self._graph_of(len(spec.shape))

    def _graph_of(self, ndim: int) -> StateGraph:
        if ndim not in self._graphs:
            self._graphs[ndim] = StateGraph.core(self.mesh, ndim, self.collectives)
        return self._graphs[ndim]

    def _from(self, priced: PricedGraph, spec: TensorSpec, start: int) -> Floats:
        """Lengths from one state of the core to all."""
        key = priced, spec.bytes, start
        if key not in self._rows:
            if len(self._rows) >= _ROWS:
                self._rows.clear()
            self._rows[key] = priced.lengths(spec.bytes, np.array([start]))[0]
        return self._rows[key]

    def _weights(self, graph: StateGraph, spec: TensorSpec, local: Floats, edges: Ints) -> Floats:
        """Seconds of some edges; `local` bytes of each state."""
        alpha_s, per_byte = self._prices_of(graph, spec)[graph.groups[1][edges]].T
        return alpha_s + per_byte * np.maximum(local[graph.src[edges]], local[graph.dst[edges]])

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


@dataclass(frozen=True, eq=False)
class _Search:
    """From `starts` to `ends`, rows of a graph; backwards: paths lead from the ends.

    asked: rows of the distinct starts under new `names` of the dims; which: of each start
    """

    priced: PricedGraph
    spec: TensorSpec
    starts: Ints
    ends: Ints
    backwards: bool
    names: Codes
    asked: Ints
    which: Ints

    @property
    def is_in_core(self) -> bool:
        return self.priced.whole.joined_to is None

    def lengths(self) -> Floats:
        """[asked, states]"""
        return self.priced.lengths(self.spec.bytes, self.asked, backwards=self.backwards)

    def seconds(self, length: Floats) -> Floats:
        """[sources, targets] from `lengths`."""
        graph, even = self.priced.whole, self.priced.even
        found = np.empty((len(self.starts), len(self.ends)))
        own_names = np.arange(graph.ndim)
        names = row_numbers(self.names)
        for number in np.unique(names).tolist():
            own = np.flatnonzero(names == number)
            new = self.names[own[0]]
            renamed = (new != own_names).any()
            to = graph.rows(rename(graph.codes[self.ends], new)) if renamed else self.ends
            found[own] = length[np.ix_(self.which[own], to)]
        found[~even[self.starts], :] = np.inf
        found[:, ~even[self.ends]] = np.inf
        return found.T if self.backwards else found


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
