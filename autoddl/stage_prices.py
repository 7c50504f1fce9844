"""Prices of every run of a model's layers on every sub-mesh, for the partition into stages.

The SBP search runs on the graph on a sub-mesh by elimination, first with memory for free and then
at rising prices of it; each answer gives every operator's seconds and bytes (`cost.account`), and a
run of layers costs the sum of its operators'. A stage takes the fastest answer that fits its
memory. Searching a run's own graph could only do better at its ends; that is done for the stages
that are chosen (`staged_planner`).

On a large sub-mesh one number of micro-batches is searched, and the answers are also accounted at a
second one: times and bytes of a pass are affine in the rows of a micro-batch,
which gives those of all other numbers. Stages that are chosen are searched at theirs.

A model with many equal layers in a row is searched in two pieces, the layers up to the second of
them and those from the last but one; all equal ones between cost what the second does.

A tied parameter whose readers are in several stages is held by each; a stage with some of them but
not all also pays for sending and adding up its gradient once an iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .cost.model import CostModel
from .pipeline.cut import CutGraph
from .pipeline.partition import Shape, StagePrice
from .planner import micro_graph
from .search.eliminate import eliminate
from .search.group_table import Space
from .search.pair_prices import PairPrices
from .search.placements import place
from .search.tables import build_tables
from .stage_account import Columns, columns

Array = NDArray[np.float64]
MEMORY_WEIGHTS = (0.0, 0.1, 1.0, 10.0)
_SHORT_RUN = 4
_PLENTY = 0.25  # of the memory: a model that takes less on a sub-mesh needs no smaller answer
_COLUMNS = 5  # of `stage_account.Columns`
_LARGE = 32  # devices


@dataclass(frozen=True)
class _Answer:
    """One search on one sub-mesh: sums over layers [0, n) of the five columns, and of ties.

    tied: per tied parameter its layers, its columns, and its bytes on a device
    """

    sums: Array
    tied: tuple[tuple[tuple[int, ...], Array, float], ...]

    def run(self, first: int, last: int, exchange_s_per_byte: float) -> StagePrice:
        total = self.sums[last] - self.sums[first]
        for layers, own, n_bytes in self.tied:
            inside = sum(first <= layer < last for layer in layers)
            if inside:
                total = total + own
            if 0 < inside < len(layers):
                total = total + np.array([0, 0, 2 * n_bytes * exchange_s_per_byte, 0, 0])
        return StagePrice(*map(float, np.maximum(total, 0.0)))

    def runs(self, exchange_s_per_byte: float) -> Array:
        """[first, last, 5] of `run`."""
        total = self.sums[None, :, :] - self.sums[:, None, :]
        place = np.arange(len(self.sums))
        first, last = place[:, None], place[None, :]
        for layers, own, n_bytes in self.tied:
            used = [(first <= layer) & (layer < last) for layer in layers]
            inside = np.sum(used, axis=0)
            total += np.where((inside > 0)[..., None], own, 0.0)
            shared = (inside > 0) & (inside < len(layers))
            total[..., 2] += np.where(shared, 2 * n_bytes * exchange_s_per_byte, 0.0)
        return np.maximum(total, 0.0)

    def towards(self, other: _Answer, part: float) -> _Answer:
        """On the line through this answer (part 0) and another account of it (part 1)."""
        pairs = zip(self.tied, other.tied, strict=True)
        return _Answer(
            self.sums + part * (other.sums - self.sums),
            tuple((n, a + part * (b - a), size) for (n, a, size), (_, b, _) in pairs),
        )


@dataclass(frozen=True)
class _Piece:
    """Layers [first, last) that are searched; layer -> the layers whose price it gives."""

    first: int
    last: int
    stands_for: Mapping[int, tuple[int, ...]]


class StagePrices:
    """Prices for `partition`; see the module's docstring. Searches when first asked, and keeps.

    searched: two numbers of micro-batches for large sub-meshes; None: each that is asked for
    """

    def __init__(
        self, cut: CutGraph, model: CostModel, searched: tuple[int, int] | None = None
    ) -> None:
        self.cut = cut
        self.model = model
        self._searched = searched
        self._answers: dict[tuple[Shape, int], list[_Answer]] = {}
        self._accounts: dict[Shape, tuple[list[_Answer], list[_Answer]]] = {}
        self._pairs: dict[Shape, PairPrices] = {}
        self._runs: dict[tuple[Shape, int], list[Array]] = {}

    def price(
        self, first: int, last: int, shape: Shape, micro_batches: int, held: int
    ) -> StagePrice | None:
        """The fastest that fits with `held` micro-batches in flight, else the smallest."""
        limit = self.model.limit_bytes
        found = [
            answer.run(first, last, self._exchange_s_per_byte(shape))
            for answer in self.answers(shape, micro_batches)
        ]
        if not found:
            return None
        fitting = [p for p in found if p.memory_bytes(held) <= limit]
        if not fitting:
            return min(found, key=lambda p: p.memory_bytes(held))
        return min(fitting, key=lambda p: micro_batches * (p.forward_s + p.backward_s) + p.once_s)

    def times(self, shape: Shape, micro_batches: int, held: int) -> tuple[Array, Array]:
        """`price` of every run of layers, as `partition.TimesFn`."""
        count = len(self.cut.layers)
        each, once, whole = np.full((3, count + 1, count + 1), np.inf)
        if (shape, micro_batches) not in self._runs:
            self._runs[shape, micro_batches] = [
                answer.runs(self._exchange_s_per_byte(shape))
                for answer in self.answers(shape, micro_batches)
            ]
        for found in self._runs[shape, micro_batches]:
            forward, backward, own, fixed, stash = np.moveaxis(found, 2, 0)
            seconds = micro_batches * (forward + backward) + own
            better = (fixed + held * stash <= self.model.limit_bytes) & (seconds < whole)
            whole[better] = seconds[better]
            each[better] = (forward + backward)[better]
            once[better] = own[better]
        empty = np.tri(count + 1, dtype=bool)
        each[empty] = once[empty] = np.inf
        return each[:count], once[:count]

    def _exchange_s_per_byte(self, shape: Shape) -> float:
        cluster = self.model.cluster
        link = cluster.inter if cluster.nodes > 1 else cluster.intra
        return link.beta_s_per_byte * shape[1] / max(shape[0], 1)

    def transfer(
        self, first: int, last: int, shape: Shape, following: Shape, micro_batches: int
    ) -> float:
        """Seconds of what layers [first, last) send on and get back for it, a micro-batch.

        Split over as many hosts as the smaller side has (the layouts are not known yet).
        """
        forward, backward = map(float, self._bytes_sent[first, last])
        cluster = self.model.cluster
        if cluster.nodes == 1:
            link, width = cluster.intra, min(shape[1], following[1])
        else:
            link, width = cluster.inter, min(shape[0], following[0])
        return sum(
            link.transfer_seconds(n_bytes / micro_batches / width)
            for n_bytes in (forward, backward)
            if n_bytes
        )

    @cached_property
    def _bytes_sent(self) -> Array:
        """[first, last] -> (activations, gradients) of a whole batch that layers [first, last)

        compute and later ones read: of a tensor of layer h with its last reader r, those with
        first <= h < last <= r.
        """
        graph, count = self.cut.graph, len(self.cut.layers)
        sent = np.zeros((count + 1, count + 1, 2))
        for name, readers in self.cut.readers.items():
            if readers:
                home = self.cut.layer_of[graph.producers[name].name]
                n_bytes = graph.tensors[name].spec.bytes
                back = n_bytes if name in graph.needs_grad else 0
                sent[: home + 1, home + 1 : readers[-1] + 1] += n_bytes, back
        return sent

    def answers(self, shape: Shape, micro_batches: int) -> list[_Answer]:
        """Searches with ever less memory, the fastest first."""
        key = shape, micro_batches
        if key not in self._answers:
            if self._searched is None or shape[0] * shape[1] <= _LARGE:
                (self._answers[key],) = self._search(shape, (micro_batches,))
            else:
                self._answers[key] = self._on_the_line(shape, micro_batches, self._searched)
        return self._answers[key]

    def _on_the_line(
        self, shape: Shape, micro_batches: int, searched: tuple[int, int]
    ) -> list[_Answer]:
        if shape not in self._accounts:
            first, second = self._search(shape, searched)
            self._accounts[shape] = first, second
        rows, others = (1 / n for n in searched)
        part = (1 / micro_batches - rows) / (others - rows)
        return [a.towards(b, part) for a, b in zip(*self._accounts[shape], strict=True)]

    def _search(self, shape: Shape, counts: tuple[int, ...]) -> list[list[_Answer]]:
        """The answers for the first of `counts` micro-batches, accounted for each of them."""
        pieces = [self._search_piece(p, shape, counts) for p in self._pieces]
        joined = [
            [self._join(tuple(columns[n] for columns in answers)) for n in range(len(counts))]
            for answers in zip(*pieces, strict=False)
        ]
        return [list(answers) for answers in zip(*joined, strict=True)]

    @cached_property
    def _pieces(self) -> list[_Piece]:
        """What is searched, and for which layers each layer of it stands."""
        count = len(self.cut.layers)
        keys = [layer_key(self.cut, n) for n in range(count)]
        longest = start = first = 0
        for n in range(count):
            if n == 0 or keys[n] != keys[n - 1]:
                first = n
            if n + 1 - first > longest:
                longest, start = n + 1 - first, first
        stop = start + longest
        if longest <= _SHORT_RUN:
            return [_Piece(0, count, {n: (n,) for n in range(count)})]
        before = {n: (n,) for n in range(start + 1)}
        middle = {start + 1: tuple(range(start + 1, stop - 1))}
        after = {n: (n,) for n in range(stop - 1, count)}
        return [_Piece(0, start + 2, before | middle), _Piece(stop - 2, count, after)]

    def _search_piece(
        self, piece: _Piece, shape: Shape, counts: tuple[int, ...]
    ) -> list[list[Columns]]:
        cluster = self.model.cluster.with_shape(*shape)
        layers = self.cut.stage(piece.first, piece.last)
        graph = micro_graph(layers, counts[0])
        others = [micro_graph(layers, n).with_forks() for n in counts[1:]]
        prices = self._pairs.get(shape)
        if prices is None:
            prices = PairPrices(cluster.mesh, self._on(shape).comm.price)
            self._pairs[shape] = prices
        model = dataclasses.replace(self._on(shape), memory_limit_bytes=float("inf"))
        tables = build_tables(graph, model, counts[0], Space(), prices)
        assert tables is not None  # there is no limit
        problem = tables.problem
        found: list[list[Columns]] = []
        unit = 0.0  # seconds per byte at which all memory costs as much as all time
        for weight in MEMORY_WEIGHTS:
            choice = eliminate(problem, weight * unit, frozenset()).expand_greedily()
            seconds, memory = problem.evaluate(choice)
            placed = place(tables, choice, prices.paths)
            graphs = (tables.grouping.graph, *others)
            found.append([columns(graph, model, *placed) for graph in graphs])
            if memory <= _PLENTY * self.model.limit_bytes:
                break
            unit = unit or seconds / memory
        return found

    def _on(self, shape: Shape) -> CostModel:
        return dataclasses.replace(self.model, cluster=self.model.cluster.with_shape(*shape))

    def _join(self, answers: tuple[Columns, ...]) -> _Answer:
        layers = np.zeros((len(self.cut.layers) + 1, _COLUMNS))
        tied: dict[str, Array] = {}
        shared: set[str] = set()  # with several readers in a piece, which hold the gradients
        for piece, costs in zip(self._pieces, answers, strict=True):
            for name, own in costs.items():
                users = self._users.get(name)
                if users is not None and len(users) > 1:
                    tied[name] = own
                    if sum(piece.first <= user < piece.last for user in users) > 1:
                        shared.add(name)
                    continue
                home = self._layer_of(name) if users is None else (users or (0,))[0]
                for layer in piece.stands_for.get(max(home, piece.first), ()):
                    layers[layer + 1] += own
        copies = self.model.parameter_copies
        return _Answer(
            layers.cumsum(axis=0),
            tuple(
                (self._users[n], own, float(own[3]) / (copies - (n in shared)))
                for n, own in tied.items()
            ),
        )

    @cached_property
    def _users(self) -> dict[str, tuple[int, ...]]:
        return self.cut.param_users

    def _layer_of(self, name: str) -> int:
        """Of an operator of the graph with forks; sources count for the first layer."""
        base = name.removesuffix(".fork")
        return self.cut.layer_of.get(name, self.cut.layer_of.get(base, 0))


def layer_key(cut: CutGraph, layer: int) -> Hashable:
    """Equal for layers with the same operators on tensors of the same sizes."""
    return tuple(
        (
            op.kind,
            () if op.kind == "opaque" else tuple(sorted(op.attrs.items())),
            spec.inputs,
            spec.outputs,
        )
        for op in cut.ops_of(layer)
        for spec in (cut.graph.spec(op),)
    )
