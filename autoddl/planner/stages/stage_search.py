"""What runs of layers cost on one sub-mesh, over ever higher prices of memory.

One graph stands for the model: of many equal layers in a row it has the first two and the last
(`shorten`), and all between cost what the second does. Its search problem counts the memory of
`held` micro-batches in flight (`cost.recompute`), with ZeRO's storages among the choices; it is
solved by elimination for

    seconds + price * memory

at price 0 and at rising prices until a given run of layers fits the memory (`sweep`). If most
stages could not fit even if all was divided evenly, or memory costs much, the same again with the
model's repeated blocks run again in the backward pass.

Every answer gives each operator's seconds and bytes (`plans.stage_figures.columns`), and a run of
layers costs the sum of its operators'. At other numbers of micro-batches the same placements cost
what lies on the line through two accounts: times and bytes of a pass are affine in the rows of a
micro-batch. A number whose rows the placements do not split evenly has no price.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cost.memory import is_shared
from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...graph.cut import CutGraph
from ...graph.graph import Graph
from ...graph.placed import PlannedOp
from ...graph.regions import repeated_blocks
from ...plans.stage import StagePrice
from ...plans.stage_figures import Columns, columns
from ...sbp.layout import units_of_dim
from ...sbp.mesh import Mesh
from ...search.budget import Deadline
from ...search.elimination import eliminate
from ...search.messages import solve
from ...search.problem import Choice, Problem
from ..asked import micro_graph
from ..realize import place
from ..tables.group_table import Space
from ..tables.memory import least_bytes
from ..tables.pair_prices import PairPrices
from ..tables.tables import Tables, build_tables

Array = NDArray[np.float64]
_SHORT_RUN = 4  # equal layers in a row; 3 and 100 gave the same plans of two GPTs
# In times the seconds per byte at price 0. Without the first, with six from 0.01 on, and with
# bisections between the last two the same stages came out (GPT 0.35B in 9 GB, a small GPT on 4x2).
_PRICES = (0.03, 0.3, 3.0, 30.0, 300.0)
# Of these, where time is over. With the highest alone GPT-3 175B in 4, 8 and 16 stages within a
# second has plans that take 1.6 to 2 times as long, in 1.2 times the time.
_LATE = (3.0, 300.0)
# Of the seconds: memory costs so much that running blocks again may be cheaper. Never and always
# gave the same plan of VGG13 in two stages of 1.2 GB on 2x4, in 0.97 and 1.15 of the time.
_DEAR = 0.1


@dataclass(frozen=True)
class Short:
    """The graph that is searched, and for which layers each of its layers stands."""

    graph: Graph
    stands_for: Mapping[int, tuple[int, ...]]


def shorten(cut: CutGraph) -> Short:
    """The model with three layers, the first two and the last, of its longest equal run.

    GPT-3's 96 layers on 128x8 are planned 1.5 times as fast for it, with the same plan.
    """
    count = len(cut.layers)
    keys = [layer_key(cut, n) for n in range(count)]
    longest = start = first = 0
    for n in range(count):
        if n == 0 or keys[n] != keys[n - 1]:
            first = n
        if n + 1 - first > longest:
            longest, start = n + 1 - first, first
    own = {n: (n,) for n in range(count)}
    if longest <= _SHORT_RUN:
        return Short(cut.graph, own)
    second, stop = start + 1, start + longest
    left_out = range(second + 1, stop - 1)
    kept = {n: own[n] for n in own if n not in left_out}
    return Short(cut.without(left_out.start, left_out.stop), {**kept, second: (second, *left_out)})


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


@dataclass(frozen=True)
class Answer:
    """One search on one sub-mesh: sums over layers [0, n) of what adds up, and of ties.

    sums:   [layers + 1, 5] the fields of `StagePrice` but the last
    works:  [layers] bytes of the block that a layer lies in, if it is run again
    tied:   per tied parameter its layers, its columns, and its bytes on a device
    """

    sums: Array
    works: Array
    tied: tuple[tuple[tuple[int, ...], Array, float], ...]

    def run(self, first: int, last: int, exchange_s_per_byte: float) -> StagePrice:
        total = self.sums[last] - self.sums[first]
        for layers, own, n_bytes in self.tied:
            inside = sum(first <= layer < last for layer in layers)
            if inside:
                total = total + own
            if 0 < inside < len(layers):
                total = total + np.array([0, 0, 2 * n_bytes * exchange_s_per_byte, 0, 0])
        work = self.works[first:last].max()
        return StagePrice(*map(float, np.maximum([*total, work], 0.0)))

    def runs(self, exchange_s_per_byte: float) -> Array:
        """[first, last, 6] of `run`."""
        total = self.sums[None, :, :] - self.sums[:, None, :]
        place = np.arange(len(self.sums))
        first, last = place[:, None], place[None, :]
        for layers, own, n_bytes in self.tied:
            used = [(first <= layer) & (layer < last) for layer in layers]
            inside = np.sum(used, axis=0)
            total += np.where((inside > 0)[..., None], own, 0.0)
            shared = (inside > 0) & (inside < len(layers))
            total[..., 2] += np.where(shared, 2 * n_bytes * exchange_s_per_byte, 0.0)
        work = np.zeros((*total.shape[:2], 1))
        for n in range(len(self.works)):
            work[n, n + 1 :, 0] = np.maximum.accumulate(self.works[n:])
        return np.maximum(np.concatenate([total, work], axis=2), 0.0)

    def towards(self, other: Answer, part: float) -> Answer:
        """On the line through this answer (part 0) and another account of it (part 1)."""
        pairs = zip(self.tied, other.tied, strict=True)
        return Answer(
            self.sums + part * (other.sums - self.sums),
            self.works + part * (other.works - self.works),
            tuple((n, a + part * (b - a), size) for (n, a, size), (_, b, _) in pairs),
        )


@dataclass(frozen=True)
class Searched:
    """An answer for `micro_batches`, and what it takes to price its placements at other numbers.

    elsewhere: the account at another number, if there is one
    splits:    (size of a tensor's dim in the whole batch, parts that it is split into)
    ops:       the placements
    """

    micro_batches: int
    answer: Answer
    elsewhere: tuple[int, Answer] | None
    splits: frozenset[tuple[int, int]]
    ops: Mapping[str, PlannedOp]

    def at(self, micro_batches: int) -> Answer | None:
        """The price of the placements in other micro-batches; None if they do not divide."""
        if micro_batches == self.micro_batches:
            return self.answer
        if self.elsewhere is None:
            return None
        if any(size % (micro_batches * parts) for size, parts in self.splits):
            return None
        other, account = self.elsewhere
        here = 1 / self.micro_batches
        return self.answer.towards(account, (1 / micro_batches - here) / (1 / other - here))


class StageSearch:
    """Searched on one sub-mesh, `model`'s cluster, for numbers of micro-batches.

    recompute: repeated blocks may be run again
    deadline:  after which one or two prices of memory will do
    """

    def __init__(
        self,
        cut: CutGraph,
        short: Short,
        model: CostModel,
        recompute: bool,
        space: Space,
        deadline: Deadline,
    ) -> None:
        self.cut = cut
        self.short = short
        self.model = model
        self._recompute = recompute
        self._space = space
        self._deadline = deadline
        self.limit_bytes = model.limit_bytes
        self._free = dataclasses.replace(model, memory_limit_bytes=math.inf)
        self.pair_prices = PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)

    def answers(
        self, parts: int, other: int | None, held: int, run: range, beat_s: float = math.inf
    ) -> list[Searched]:
        """Searched in `parts` micro-batches, so that layers `run` with `held` of them fit.

        other:  a number of micro-batches for a second account
        beat_s: seconds of `run` in one micro-batch; if it takes as long with memory for nothing,
                that is the only answer
        """
        found: list[Searched] = []
        plain = Recomputation(micro_graph(self.short.graph, parts))
        blocks = repeated_blocks(plain.graph) if self._recompute else ()
        if not blocks or self.may_fit(plain, (held + 1) // 2, run):
            found = self._over_prices(plain, parts, other, held, run, beat_s)
            first, last = (s.answer.run(run.start, run.stop, 0.0) for s in (found[0], found[-1]))
            slower = _seconds(last, parts) / _seconds(first, parts)
            if last.memory_bytes(held) <= self.limit_bytes and slower <= 1 + _DEAR:
                return found
        if blocks:
            again = Recomputation(plain.graph, blocks)
            found += self._over_prices(again, parts, other, held, run, beat_s)
        return found

    def placements(self, searched: Searched, first: int, last: int) -> dict[str, PlannedOp]:
        """The placements found for the operators of layers [first, last)."""
        found: dict[str, PlannedOp] = {}
        for kept, layers in self.short.stands_for.items():
            for layer in layers:
                if not first <= layer < last:
                    continue
                for op, alike in zip(self.cut.ops_of(layer), self.cut.ops_of(kept), strict=True):
                    others = (f":{n}.fork" for n in range(1, len(op.outputs)))
                    for suffix in ("", ".fork", *others):
                        placed = searched.ops.get(alike.name + suffix)
                        if placed is not None:
                            found[op.name + suffix] = placed
        return found

    def may_fit(self, plain: Recomputation, held: int, run: range) -> bool:
        """Whether layers `run` with `held` micro-batches fit, were all divided evenly."""
        params = sum(
            float(plain.graph.tensors[p.outputs[0]].spec.bytes) for p in plain.graph.params
        )
        params *= self.model.parameter_copies / self.model.cluster.mesh.size
        kept = least_bytes(plain.graph, self.model) - params
        share = len(run) / len(self.short.stands_for)
        return share * (params + held * kept) <= self.limit_bytes

    def _over_prices(
        self,
        again: Recomputation,
        parts: int,
        other: int | None,
        held: int,
        run: range,
        beat_s: float,
    ) -> list[Searched]:
        """The first without a limit, the last the fastest that fits, if any does."""
        again, left_s = dataclasses.replace(again, in_flight=held), self._deadline.left_s
        tables = build_tables(again.graph, self._free, parts, self._space, self.pair_prices, again)
        assert tables is not None  # there is no limit
        elsewhere = None if other is None else self._again_at(again, other)
        found: list[Searched] = []

        def offer(choice: Choice) -> bool:
            searched = self._searched(tables, choice, parts, other, elsewhere)
            price = searched.answer.run(run.start, run.stop, 0.0)
            found.append(searched)
            fits = price.memory_bytes(held) <= self.limit_bytes
            hopeless = price.forward_s + price.backward_s >= beat_s
            return fits or hopeless

        is_short = 2 * self._deadline.left_s < left_s  # building took more than is left
        sweep(tables.problem, offer, Deadline(0.0) if is_short else self._deadline)
        return found

    def _again_at(self, again: Recomputation, parts: int) -> Recomputation:
        return dataclasses.replace(again, graph=micro_graph(self.short.graph, parts))

    def _searched(
        self,
        tables: Tables,
        choice: Choice,
        parts: int,
        other: int | None,
        elsewhere: Recomputation | None,
    ) -> Searched:
        ops, edges = placed = place(tables, choice, self.pair_prices.paths)
        graph, again = tables.grouping.graph, tables.again
        answer = self._join(columns(graph, self._free, *placed, again), again)
        second = None
        if other is not None and elsewhere is not None and not self._deadline.is_over:
            account = columns(elsewhere.graph, self._free, ops, edges, elsewhere)
            second = other, self._join(account, elsewhere)
        splits = _splits(graph, ops, parts, self.model.cluster.mesh)
        return Searched(parts, answer, second, splits, ops)

    def _join(self, costs: Columns, again: Recomputation) -> Answer:
        layers = np.zeros((len(self.cut.layers) + 1, 5))
        works = np.zeros(len(self.cut.layers))
        tied: dict[str, Array] = {}
        block_bytes = [sum(float(costs[n][5]) for n in block) for block in again.blocks]
        params = _forked_params(again.graph)
        for name, own in costs.items():
            param = params.get(name, name)
            users = self._users.get(param)
            if users is not None and len(users) > 1:
                tied[param] = tied.get(param, 0.0) + own[:5]
                continue
            home = self._layer_of(name) if users is None else (users or (0,))[0]
            work = block_bytes[again.block_of[name]] if name in again.block_of else 0.0
            for layer in self.short.stands_for.get(home, ()):
                layers[layer + 1] += own[:5]
                works[layer] = max(works[layer], work)
        copies, graph = self.model.parameter_copies, again.graph
        # of a shared parameter the gradients are its readers'
        shared = {op.name for op in graph.params if is_shared(graph, op.outputs[0])}
        return Answer(
            layers.cumsum(axis=0),
            works,
            tuple(
                (self._users[n], own, float(own[3]) / (copies - (n in shared)))
                for n, own in tied.items()
            ),
        )

    @cached_property
    def _users(self) -> dict[str, tuple[int, ...]]:
        return self.cut.param_users

    def _layer_of(self, name: str) -> int:
        """The layer of an operator of the graph with forks; sources belong to the first one."""
        base = name.removesuffix(".fork")
        made_by = base.rpartition(":")[0]  # of another output than the first
        known = (n for n in (name, base, made_by) if n in self.cut.layer_of)
        return self.cut.layer_of.get(next(known, ""), 0)


def _forked_params(graph: Graph) -> dict[str, str]:
    """Forks of parameters -> the parameter's operator."""
    forks = ((op.name, graph.origin(op.outputs[0])) for op in graph.ops if op.kind == "fork")
    return {name: origin.name for name, origin in forks if origin.kind == "param"}


def sweep(problem: Problem, offer: Callable[[Choice], bool], deadline: Deadline) -> None:
    """Offer choices at rising prices of memory until one will do.

    offer: whether a choice will do
    deadline: after which only the prices `_LATE` are left, also to begin with
    """
    prices = [0.0, *_PRICES]
    scale = _own_scale(problem) if deadline.is_over else 0.0
    while prices:
        price = prices.pop(0)
        if deadline.is_over and price not in _LATE:
            continue
        choice = solve(eliminate(problem, price * scale, frozenset())).choice
        if offer(choice):
            return
        if price == 0.0:
            seconds, memory = problem.evaluate(choice)
            scale = seconds / memory


def _own_scale(problem: Problem) -> float:
    """Seconds per byte of the variables' own fastest strategies."""
    seconds = memory = 0.0
    for table in problem.nodes:
        fastest = problem.node_cost[table].argmin()
        seconds += float(problem.node_cost[table][fastest])
        memory += float(problem.node_memory[table][fastest])
    return seconds / memory


def _seconds(price: StagePrice, parts: int) -> float:
    return parts * (price.forward_s + price.backward_s) + price.once_s


def _splits(
    graph: Graph, ops: Mapping[str, PlannedOp], micro_batches: int, mesh: Mesh
) -> frozenset[tuple[int, int]]:
    """`Searched.splits` of what operators give and take."""
    found = set()
    for op in graph.ops:
        placed = ops[op.name]
        pairs = (
            *zip(op.inputs, placed.ins, strict=True),
            *zip(op.outputs, placed.outs, strict=True),
        )
        for name, nd in pairs:
            tensor = graph.tensors[name]
            for dim in tensor.batch_dims:
                parts = units_of_dim(nd, dim, mesh)
                if parts > 1:
                    found.add((tensor.spec.shape[dim] * micro_batches, parts))
    return frozenset(found)
