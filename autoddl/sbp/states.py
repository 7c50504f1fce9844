"""The graph of a tensor's states on a mesh: NdSbps as nodes, legal steps as edges, in arrays.

The graph depends only on the mesh and on the tensor's number of dims; sizes and prices enter as
edge weights. Up to `FULL_STATES` states the graph is complete and shortest paths are exact. Beyond,
a *core* of the `core_size` simplest states is kept, those whose label changes least often from axis
to axis. Sources and targets outside the core are added for a query (`joined`), sources with
outgoing edges only and targets with incoming edges only, so that the answer for one pair does not
depend on the other pairs in the query.

`lengths` are those of cheapest paths from many starts to all nodes of a graph:

    length[start, v] = min over edges u -> v of length[start, u] + weight(u, v)

holds for all v exactly when they are. Compiled loops (`_native`) take one node after the other and
extend its paths along its edges, for some starts at once, until no length changes (Bellman and
Ford), the largest parts first and in the next round last (Yen): a cheapest path mostly cuts a
tensor into more parts and then into fewer, so that two rounds mostly find it. Of a GPT block on
64x4 the quotient graphs' edges are followed 2.2 times instead of 5.3 times, and planning takes 0.87
of the time. Where there are no compiled loops, SciPy searches from one start after the other
(Dijkstra). Both give the same bits, because rounding keeps the order of sums.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from .._native.library import loops
from .collectives import COLLECTIVES, Collectives, Step
from .edges import (
    KIND_TABLE,
    STAY,
    edges_between,
    is_divisible,
    is_needless,
    mask_axes,
    narrowed,
    sorted_edges,
    with_algorithms,
    words,
)
from .layout import Codes, Floats, Ints, fullest_share, split_units
from .mesh import Mesh
from .placement import NdSbp, Placement

# Up to so many states the graph is complete: five labels on five axes. With 1,024 or 16,384 plans
# of gpt_0_35b on 2x16 and of dlrm on 2x8 are the same, in the same CPU time within noise (10 %).
FULL_STATES = 4096
# Most states of a core, of up to six axes and of more: they bound the edges, about 15 to a state.
# With half as many the bound of gpt_36b on 256 rises by 0.01 %; with twice as many no bound falls
# and planning vgg13 on 64 takes 1.4 times the CPU time.
LARGE_CORE, SMALL_CORE = 7000, 5000
# Of a scalar, whose states are so alike that 3 ** axes steps lead from state to state: on 13 axes
# GPT-3 175B has its first plan in 0.94 of the CPU time that it takes with 1,024, with 64 in 0.92;
# with 4,096 a third of that time went there. The plans were the same.
SCALAR_STATES = 256
# Starts that are searched at once. Of 16 to 64 each takes the same CPU time within noise (10 %), of
# one twice to four times as much (graphs of vgg13 on 64, densenet121 on 2x8, gpt3_175b on 128x8).
_AT_ONCE = 64


def core_size(mesh: Mesh, ndim: int) -> int:
    """The most states of a core: fewer on many axes, where each state has more edges."""
    if ndim == 0:
        return SCALAR_STATES
    return LARGE_CORE if mesh.num_axes <= 6 else SMALL_CORE


def core_codes(mesh: Mesh, ndim: int) -> Codes:
    """All states if there are few, else the simplest ones: [n, axes] in ascending order of words.

    A state is simpler if its label changes less often between neighbouring axes of one link class,
    and among equals if no label occurs in two separate runs. Whole levels are added up to
    `core_size`.
    """
    num_axes, num_labels = mesh.num_axes, ndim + 2
    if num_labels**num_axes <= (FULL_STATES if ndim else SCALAR_STATES):
        return _all_codes(num_axes, num_labels)
    bounds = [a for a in range(1, num_axes) if mesh.axes[a].link != mesh.axes[a - 1].link]
    inner = [a for a in range(1, num_axes) if a not in bounds]
    levels: list[Codes] = []
    for changes in range(len(inner) + 1):
        runs = [
            (*cuts, *b) for cuts in itertools.combinations(inner, changes) for b in ([], bounds)
        ]
        runs = sorted({tuple(sorted(cuts)) for cuts in runs})
        for repeated in (False, True):
            labels = {n: _run_labels(n, num_labels, repeated) for n in {len(c) + 1 for c in runs}}
            size = sum(len(labels[len(cuts) + 1]) for cuts in runs)
            full = sum(map(len, levels)) + size > core_size(mesh, ndim)
            if levels and full:
                return _ascending(levels, ndim)
            levels.extend(
                np.repeat(labels[len(cuts) + 1], np.diff((0, *cuts, num_axes)), axis=1)
                for cuts in runs
            )
    return _ascending(levels, ndim)


def _ascending(levels: list[Codes], ndim: int) -> Codes:
    codes = np.concatenate(levels)
    return codes[np.argsort(words(codes, ndim))]


def _all_codes(num_axes: int, num_labels: int) -> Codes:
    """[num_labels ** num_axes, num_axes]: every row of labels, ascending."""
    count = num_labels**num_axes
    rows = np.indices((num_labels,) * num_axes, dtype=np.int8).reshape(num_axes, count).T
    return np.ascontiguousarray(rows) - np.int8(2)


def _run_labels(runs: int, num_labels: int, repeated: bool) -> Codes:
    """[n, runs]: the labels of neighbouring runs, with or without one label in two runs."""
    codes = _all_codes(runs, num_labels)
    ordered = np.sort(codes, axis=1)
    has_double = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    return codes[(codes[:, 1:] != codes[:, :-1]).all(axis=1) & (has_double == repeated)]


@dataclass(frozen=True, eq=False)
class Fans:
    """The edges at each node: those of node n from `begins[n]` to `begins[n + 1]`.

    near, far: of each edge, the node and the one at its other end
    work:      of each edge, the index of its kind in `collectives` before the mask of its axes
    order:     of each edge, its place in the graph; None: the same
    """

    begins: Ints
    near: Ints
    far: Ints
    work: Ints
    order: Ints | None = None


@dataclass(frozen=True, eq=False)
class StateGraph:
    """States (codes [n, axes], ascending words) and the legal steps between them.

    For each edge: rows `src` and `dst`, the kind (its index in `collectives`) and the axes as a bit
    mask. Edges are sorted by (src, kind, mask, dst), the fixed order that breaks ties.

    is_joined: states were added for a query, after those of the core
    """

    mesh: Mesh
    ndim: int
    codes: Codes
    src: Ints
    dst: Ints
    kind: Ints
    mask: Ints
    collectives: Collectives = COLLECTIVES
    is_joined: bool = False

    @staticmethod
    def core(mesh: Mesh, ndim: int, collectives: Collectives = COLLECTIVES) -> StateGraph:
        """The graph of all states of a small mesh, of the core states of a large one."""
        codes = core_codes(mesh, ndim)
        edges = edges_between(codes, codes, ndim, collectives)
        if len(codes) < (ndim + 2) ** mesh.num_axes:
            edges = edges[:, ~is_divisible(codes, edges, mesh, ndim, collectives)]
        return StateGraph(mesh, ndim, codes, *edges, collectives=collectives)

    @cached_property
    def leaving(self) -> Fans:
        """The edges by their sources."""
        work = self.kind << self.mesh.num_axes | self.mask
        return Fans(_begins(self.src, len(self.codes)), self.src, self.dst, work)

    @cached_property
    def entering(self) -> Fans:
        """The edges by their targets."""
        order = np.argsort(narrowed(self.dst), kind="stable")
        begins = _begins(self.dst, len(self.codes))
        return Fans(begins, self.dst[order], self.src[order], self.leaving.work[order], order)

    @cached_property
    def lean(self) -> StateGraph:
        """Without the free steps that other free steps replace: as far from state to state."""
        if self.is_joined:
            return self
        edges = np.stack([self.src, self.dst, self.kind, self.mask])
        edges = edges[:, ~is_needless(self.codes, edges, self.ndim, self.collectives)]
        return StateGraph(self.mesh, self.ndim, self.codes, *edges, collectives=self.collectives)

    @cached_property
    def words(self) -> Ints:
        return words(self.codes, self.ndim)

    @cached_property
    def units(self) -> Ints:
        """[n, ndim]: of what each dim must be a multiple to be split evenly (`split_units`)."""
        return split_units(self.codes, self.ndim, self.mesh)

    @cached_property
    def fullest(self) -> Floats | float:
        """[n]: of how many units each state's largest part consists (`fullest_share`)."""
        return fullest_share(self.codes, self.mesh)

    def rows(self, codes: Codes) -> Ints:
        """The rows of the given states; -1 for states that are not in the graph."""
        wanted = words(codes, self.ndim)
        at = np.minimum(np.searchsorted(self.words, wanted), len(self.words) - 1)
        return np.where(self.words[at] == wanted, at, -1)

    def joined(self, sources: Codes, targets: Codes) -> tuple[StateGraph, Ints, Ints]:
        """The graph with `sources` and `targets` added, and the row of each.

        A state outside the core is added together with the states on its way to Broadcast, one
        label after the other, so that every source reaches the core and the core reaches every
        target. These nodes form trees, so no path passes through a node that was added for another
        pair only.
        """
        source_rows, target_rows = self.rows(sources), self.rows(targets)
        if (source_rows >= 0).all() and (target_rows >= 0).all():
            return self, source_rows, target_rows
        ways_in = self._ways(sources[source_rows < 0])
        ways_out = self._ways(targets[target_rows < 0])
        first_in = len(self.codes)
        first_out = first_in + len(ways_in)
        between = partial(edges_between, ndim=self.ndim, collectives=self.collectives)
        on_way = partial(_edges_on_way, ndim=self.ndim, collectives=self.collectives)
        edges = [
            np.stack([self.src, self.dst, self.kind, self.mask]),
            _shifted(between(ways_in, self.codes), first_in, 0),
            _shifted(between(ways_in, ways_out), first_in, first_out),
            _shifted(between(self.codes, ways_out), 0, first_out),
            _shifted(on_way(ways_in), first_in, first_in),
            _shifted(on_way(ways_out, backwards=True), first_out, first_out),
            _shifted(_same_states(ways_in, ways_out, self.ndim), first_in, first_out),
        ]
        graph = StateGraph(
            self.mesh,
            self.ndim,
            np.concatenate([self.codes, ways_in, ways_out]),
            *sorted_edges(np.concatenate(edges, axis=1)),
            collectives=self.collectives,
            is_joined=True,
        )
        at_in = np.searchsorted(words(ways_in, self.ndim), words(sources, self.ndim))
        at_out = np.searchsorted(words(ways_out, self.ndim), words(targets, self.ndim))
        return (
            graph,
            np.where(source_rows < 0, first_in + at_in, source_rows),
            np.where(target_rows < 0, first_out + at_out, target_rows),
        )

    def _ways(self, codes: Codes) -> Codes:
        """The states outside the core that `without_a_label` passes through, ascending."""
        found = [codes]
        while len(codes):
            codes = without_a_label(codes)
            codes = codes[self.rows(codes) < 0]
            found.append(codes)
        rows = np.concatenate(found)
        _, first = np.unique(words(rows, self.ndim), return_index=True)
        return rows[first]

    def nd(self, row: int) -> NdSbp:
        return NdSbp.from_codes(self.codes[row])

    def step(self, edge: int) -> Step:
        """The `Step` that an edge represents."""
        axes = mask_axes(int(self.mask[edge]))
        source = Placement(int(self.codes[self.src[edge], axes[0]]))
        target = Placement(int(self.codes[self.dst[edge], axes[0]]))
        entry = self.collectives.entries[int(self.kind[edge])]
        return Step(entry.name, axes, source, target, entry.algorithm)


def _begins(nodes: Ints, count: int) -> Ints:
    """[count + 1]: where the edges of each node begin if they are sorted by their `nodes`."""
    return np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=count))])


def without_a_label(codes: Codes) -> Codes:
    """Each state with all axes of its first label (Partial, then S0, ...) made Broadcast."""
    rank = np.where(codes == -1, np.int8(127), codes)
    first = rank.min(axis=1, keepdims=True, initial=127)
    return np.where(codes == first, np.int8(-1), codes)


def _edges_on_way(
    way: Codes, ndim: int, collectives: Collectives, *, backwards: bool = False
) -> Ints:
    """[4, m]: the steps between states of `way` and the same `without_a_label`."""
    known, wanted = words(way, ndim), words(without_a_label(way), ndim)
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    more = np.flatnonzero(known[at] == wanted) if len(known) else np.empty(0, dtype=np.int64)
    less = at[more]
    src, dst = (less, more) if backwards else (more, less)
    changed = way[more] != way[less]
    axis = changed.argmax(axis=1)
    labels = np.minimum(way[src, axis], 0), np.minimum(way[dst, axis], 0)
    mask = changed @ (1 << np.arange(way.shape[1], dtype=np.int64))
    return with_algorithms(np.stack([src, dst, KIND_TABLE[labels], mask]), collectives)


def _same_states(left: Codes, right: Codes, ndim: int) -> Ints:
    """[4, m]: edges without a step between equal states."""
    _, src, dst = np.intersect1d(words(left, ndim), words(right, ndim), return_indices=True)
    return np.stack([src, dst, np.full_like(src, STAY), np.zeros_like(src)])


def _shifted(edges: Ints, first_src: int, first_dst: int) -> Ints:
    return edges + np.array([[first_src], [first_dst], [0], [0]])


def lengths(
    begins: Ints,
    targets: Ints,
    weights: Floats,
    order: Ints,
    starts: Ints,
    ends: Ints | None = None,
) -> Floats:
    """[starts, ends] lengths of the cheapest paths; None: to all nodes.

    begins: [nodes + 1] where the edges that leave each node begin among `targets` and `weights`
    order:  [nodes] those of larger parts first, which is sooner

    Edges of infinite weight are not there.
    """
    num_nodes = len(begins) - 1
    compiled = loops()
    if compiled is None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        matrix = csr_matrix((weights, targets, begins), shape=(num_nodes, num_nodes))
        found = dijkstra(matrix, indices=starts)
        return found if ends is None else found[:, ends]
    first_edges, leads_to = begins.astype(np.int32), targets.astype(np.int32)
    in_order = order.astype(np.int32)
    found = np.empty((len(starts), num_nodes if ends is None else len(ends)))
    for first in range(0, len(starts), _AT_ONCE):
        own = starts[first : first + _AT_ONCE]
        length = np.full((num_nodes, len(own)), np.inf)
        length[own, np.arange(len(own))] = 0.0
        compiled.shortest(in_order, first_edges, leads_to, weights, length)
        found[first : first + _AT_ONCE] = (length if ends is None else length[ends]).T
    return found
