"""Prices of every run of a model's layers on every sub-mesh, for the partition into stages.

A sub-mesh is searched (`stage_search`) so that a stage of an equal pipeline on such sub-meshes fits
its memory; a stage takes the fastest of the answers that fits, or a mixture of two. Searching a
stage's own graph could only do better at its ends; that is done for the stages that are chosen
(`in_stages`).

On a large sub-mesh not every number of micro-batches is searched: first the least with which the
pipeline fills in a quarter of its time and half of the memory might do, then what `refine` is asked
for. Others are priced at the placements found for these. Sub-meshes are asked for from small to
large, and what is inside a stage only becomes dearer as it grows: once one could not beat smaller
ones even with memory for nothing, those larger still are left out, unless nothing fits without
them. That is a rule of thumb: on a machine where it fails a better plan is missed.

A tied parameter whose readers are in several stages is held by each; a stage with some of them but
not all also pays for sending and adding up its gradient once an iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cluster.spec import Cluster
from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...graph.cut import CutGraph
from ...graph.placed import PlannedOp
from ...graph.regions import repeated_blocks
from ...plans.figures import figures
from ...plans.plan import Plan
from ...plans.stage import StagePrice
from ...sbp.mesh import SubMesh
from ...search.budget import Deadline
from ..asked import micro_graph
from ..shares import proportional_shares
from ..tables.group_table import Space
from ..tables.memory import LeastBytes
from ..tables.pair_prices import PairPrices
from ..tables.tables import Rows, TableBuilder
from .stage_search import Answer, Searched, StageSearch, shorten
from .task import Learned, Partition, Shape, equal_shape, in_flight

Array = NDArray[np.float64]
# Devices. 4 took 1.4 times as long for VGG13 in two stages on 2x4; 64, and so never, and half and
# twice the parts of time and memory gave the same plan of GPT-0.35B in 4 stages of 9 GB, as fast.
LARGE = 8
_FILL = 0.25  # of the time
_ROOM = 0.5  # of the memory
# Strategies of a group that runs are priced with; the stages that are chosen have all. With 450,
# GPTs of 6.8, 36 and 175 billion parameters in 4, 4 and 8 stages have the same plans, in 1.4, 1.7
# and 1.05 times the time.
_CAP = 100


class StagePrices:
    """Prices for `partition`; see the module's docstring. Searched when first asked for, and kept.

    counts:    the numbers of micro-batches that may be asked for on large sub-meshes
    schedule:  for what a stage holds, see `task.in_flight`
    recompute: repeated blocks may be run again in the backward pass
    zero:      parameters may be stored split
    deadline:  after which no more is searched, if anything has been
    """

    def __init__(
        self,
        cut: CutGraph,
        model: CostModel,
        counts: Sequence[int] = (),
        schedule: str = "1f1b",
        recompute: bool = True,
        zero: bool = True,
        deadline: Deadline | None = None,
    ) -> None:
        self.cut = cut
        self.deadline = deadline or Deadline(np.inf)
        self.model = model
        self._counts = tuple(counts)
        self._schedule = schedule
        self.recomputes = recompute
        self._space = Space(zero=zero, cap=_CAP)
        self._short = shorten(cut)
        self._searches: dict[Shape, StageSearch] = {}
        self._searched: dict[Shape, dict[int, list[Searched]]] = {}
        self._runs: dict[tuple[Shape, int], list[Array]] = {}
        self._shares: dict[Shape, tuple[int, ...]] = {}
        # seconds of equal pipelines on large sub-meshes: the best, and each with memory for nothing
        self._best_s = np.inf
        self._free_s: dict[Shape, float] = {}
        self.learned = Learned(len(cut.layers))
        self._spares = True  # itself the search of sub-meshes that seem hopeless

    def price(
        self, first: int, last: int, shape: Shape, micro_batches: int, held: int
    ) -> StagePrice | None:
        """The fastest that fits with `held` micro-batches in flight, else the smallest.

        None if no search found a placement, or these layers have been refuted.
        """
        runs, learned = self._runs_of(shape, micro_batches), self.learned
        if not runs or learned.too_large(shape, micro_batches, held)[first, last]:
            return None
        own = [found[first : first + 1, last : last + 1] for found in runs]
        best = _fastest(own, micro_batches, held, self._limit_bytes(shape))[0, 0]
        if np.isfinite(best).all():
            told = StagePrice(*map(float, best))
            return learned.price(first, last, shape, micro_batches, held, told)
        prices = (StagePrice(*map(float, found[0, 0])) for found in own)
        return min(prices, key=lambda p: p.memory_bytes(held))

    def times(self, shape: Shape, micro_batches: int, held: int) -> tuple[Array, Array]:
        """`price` of every run of layers, as `task.TimesFn`."""
        count, learned = len(self.cut.layers), self.learned
        runs = self._runs_of(shape, micro_batches)
        if not runs:
            each, once = np.full((2, count, count + 1), np.inf)
            return each, once
        best = _fastest(runs, micro_batches, held, self._limit_bytes(shape))
        too_large = learned.too_large(shape, micro_batches, held)
        best[np.tri(count + 1, dtype=bool) | too_large] = np.inf
        each, once = best[:count, :, 0] + best[:count, :, 1], best[:count, :, 2]
        return learned.times(shape, micro_batches, held, each, once)

    def note(self, chosen: Partition, held: Sequence[int], plan: Plan) -> None:
        """What the stages of a partition take now that they are planned, and what they send."""
        count, costs = chosen.micro_batches, figures(plan).pass_costs
        for n, (own, price) in enumerate(zip(chosen.stages, figures(plan).prices, strict=True)):
            self.learned.note_price(own, count, held[n], price)
            if n + 1 < len(chosen.stages):
                both = costs.activation, costs.gradient
                seconds = sum(t for flows in both for (at, _), t in flows.items() if at == n)
                shapes = own.shape, chosen.stages[n + 1].shape
                told_s = float(self._told_transfers(*shapes, count)[own.first, own.last])
                self.learned.note_sent(own, shapes[1], count, seconds, told_s)

    def _runs_of(self, shape: Shape, micro_batches: int) -> list[Array]:
        """[first, last, 6] of each answer."""
        key = shape, micro_batches
        if not self._runs.get(key):
            exchange = self._exchange_s_per_byte(shape)
            self._runs[key] = [a.runs(exchange) for a in self.answers(shape, micro_batches)]
        return self._runs[key]

    def _exchange_s_per_byte(self, shape: Shape) -> float:
        cluster = self.model.cluster
        link = cluster.common_link("inter" if cluster.nodes > 1 else "intra")
        return link.beta_s_per_byte * shape.gpus / max(shape.nodes, 1)

    def _model_of(self, shape: Shape) -> CostModel:
        """The cost model of a sub-mesh, with the memory of its devices."""
        own = self._part(shape)
        limit = self.model.limit_bytes * (own.memory_bytes / self.model.cluster.memory_bytes)
        own = own.with_shares(self.shares(shape))
        return dataclasses.replace(self.model, cluster=own, memory_limit_bytes=limit)

    def _part(self, shape: Shape) -> Cluster:
        cluster = self.model.cluster
        first = shape.first_host([group.nodes for group in cluster.groups])
        return cluster.part(SubMesh(first, shape.nodes, 0, shape.gpus))

    def shares(self, shape: Shape) -> tuple[int, ...]:
        """By which a stage divides what it divides among hosts of two groups, by their speed.

        As finely as the rows of the fewest micro-batches allow with which the pipeline fills well;
        of more, a stage may have too few rows for them. () of one group.
        """
        if not shape.beyond:
            return ()
        if shape not in self._shares:
            own = self._part(shape)
            graph = micro_graph(self.cut.graph, self._first_count(shape))
            self._shares[shape] = proportional_shares(own, graph)
        return self._shares[shape]

    def _limit_bytes(self, shape: Shape) -> float:
        return self._model_of(shape).limit_bytes

    def transfer(
        self, first: int, last: int, shape: Shape, following: Shape, micro_batches: int
    ) -> float:
        """Seconds of what layers [first, last) send on and get back for it, a micro-batch.

        Split over as many hosts as the smaller side has (the layouts are not known yet).
        """
        return float(self.transfers(shape, following, micro_batches)[first, last])

    def transfers(self, shape: Shape, following: Shape, micro_batches: int) -> Array:
        """[first, last] of `transfer`."""
        told = self._told_transfers(shape, following, micro_batches)
        return self.learned.transfers(shape, following, micro_batches, told)

    def _told_transfers(self, shape: Shape, following: Shape, micro_batches: int) -> Array:
        cluster = self.model.cluster
        groups = {*shape.groups, *following.groups}
        if cluster.nodes == 1:
            link, width = cluster.common_link("intra", groups), min(shape.gpus, following.gpus)
        else:
            link, width = cluster.common_link("inter", groups), min(shape.nodes, following.nodes)
        sizes = self._bytes_sent / micro_batches / width
        alone = link.transfer_latency_s + link.beta_s_per_byte * sizes
        return np.where(sizes > 0, alone, 0.0).sum(axis=2)

    @cached_property
    def _bytes_sent(self) -> Array:
        """[first, last] -> (activations, gradients) of a whole batch that layers [first, last)

        compute and later ones read, or give back: of a tensor of layer h with its last reader (or
        giver) r, those with first <= h < last <= r.
        """
        graph, count = self.cut.graph, len(self.cut.layers)
        sent = np.zeros((count + 1, count + 1, 2))
        for direction, others in enumerate((self.cut.readers, self.cut.givers)):
            for name, layers in others.items():
                if layers:
                    home = self.cut.layer_of[graph.producers[name].name]
                    n_bytes = graph.tensors[name].spec.bytes
                    sent[: home + 1, home + 1 : layers[-1] + 1, direction] += n_bytes
        return sent

    def answers(self, shape: Shape, micro_batches: int) -> list[Answer]:
        """What has been found for a sub-mesh, at a number of micro-batches."""
        searched = self._searched.setdefault(shape, {})
        if self.deadline.is_over and any(self._searched.values()):
            pass
        elif shape.size <= LARGE or len(self._counts) < 3:
            self.refine(shape, micro_batches)
        elif not searched and not self._is_hopeless(shape):
            self.refine(shape, self._first_count(shape))
        if micro_batches in searched:
            return [s.answer for s in searched[micro_batches]]
        found = (s.at(micro_batches) for answers in searched.values() for s in answers)
        return [answer for answer in found if answer is not None]

    def _is_hopeless(self, shape: Shape) -> bool:
        """Whether a smaller sub-mesh could not do better even with memory for nothing."""
        return self._spares and any(
            free_s >= self._best_s
            for other, free_s in self._free_s.items()
            if other.groups == shape.groups and other.size < shape.size
        )

    def refine(self, shape: Shape, micro_batches: int) -> bool:
        """Search a sub-mesh with a number of micro-batches; False if that has been done."""
        searched = self._searched.setdefault(shape, {})
        if micro_batches in searched:
            return False
        stages, run = self._stages(shape), self._middle(shape)
        others = [n for n in self._counts if n != micro_batches]
        # fewer, larger micro-batches divide as these do
        other = max((n for n in others if n < micro_batches), default=min(others, default=None))
        held = in_flight(self._schedule, stages, stages, micro_batches)
        is_large = shape.size > LARGE
        passes = micro_batches + stages - 1
        beat_s = self._best_s / passes if is_large and self._spares else np.inf
        found = searched[micro_batches] = self._search_of(shape).answers(
            micro_batches, other, held, run, beat_s
        )
        self._runs = {key: runs for key, runs in self._runs.items() if key[0] != shape}
        if is_large:
            runs = [s.answer.runs(0.0)[run.start, run.stop][None, None] for s in found]
            for limit in (np.inf, self._limit_bytes(shape)):
                best = _fastest(runs, micro_batches, held, limit)[0, 0]
                whole_s = float(passes * (best[0] + best[1]) + best[2])
                if limit < np.inf:
                    self._best_s = min(self._best_s, whole_s)
                else:
                    self._free_s[shape] = min(self._free_s.get(shape, np.inf), whole_s)
        return True

    def search_the_rest(self) -> bool:
        """Search large sub-meshes again, as some seemed hopeless; False if that is no use.

        In as many stages as were asked for, nothing may fit on smaller ones: so GPT of 6.8 billion
        parameters in two stages on 8x8 was refused.
        """
        large = [shape for shape in self._searched if shape.size > LARGE]
        if not large or not self._spares:
            return False
        self._spares = False
        for shape in large:
            del self._searched[shape]
        self._runs = {}
        return True

    def refine_equal(self, stages: int) -> int | None:
        """Search the sub-mesh of so many equal stages, if there are such of one group.

        In which number of micro-batches, if so.
        """
        cluster = self.model.cluster
        shape = equal_shape(cluster.nodes, cluster.gpus_per_node, stages)
        if shape is None or cluster.groups:
            return None
        count = self._first_count(shape)
        self.refine(shape, count)
        return count

    def keeping_count(self, shape: Shape) -> int | None:
        """The least number of micro-batches in which no block may have to be run again."""
        stages, run = self._stages(shape), self._middle(shape)
        for count in self._counts:
            plain = Recomputation(micro_graph(self._short.graph, count))
            held = in_flight(self._schedule, stages, stages, count)
            if self._search_of(shape).may_fit(plain, held, run):
                return count
        return None

    def _search_of(self, shape: Shape) -> StageSearch:
        if shape not in self._searches:
            own = self._model_of(shape), self.recomputes, self._space, self.deadline
            self._searches[shape] = StageSearch(self.cut, self._short, *own)
        return self._searches[shape]

    def _middle(self, shape: Shape) -> range:
        """The layers of a stage in the middle of a pipeline on equal sub-meshes."""
        layers = len(self.cut.layers)
        length = -(-layers // self._stages(shape))
        start = min(layers // 2, layers - length)
        return range(start, start + length)

    def pair_prices(self, shape: Shape) -> PairPrices | None:
        """The redistributions that have been priced on a sub-mesh; None before it is searched."""
        search = self._searches.get(shape)
        return search and search.pair_prices

    def few(self, first: int, last: int, shape: Shape, micro_batches: int) -> Placed | None:
        """The strategies that layers [first, last) were priced with."""
        search, known = self._searches.get(shape), self._searched.get(shape)
        if search is None or not known:
            return None
        answers = known.get(micro_batches) or [own for found in known.values() for own in found]
        return Placed([search.placements(own, first, last) for own in answers])

    def _stages(self, shape: Shape) -> int:
        """The number of stages of a pipeline on equal sub-meshes, at most one a layer."""
        devices = self.model.cluster.num_devices
        return min(devices // shape.size, len(self.cut.layers))

    def _first_count(self, shape: Shape) -> int:
        """The least number of micro-batches that is worth a search."""
        stages = self._stages(shape)
        for count in self._counts:
            held = in_flight(self._schedule, stages, stages, count)
            needed = self._parameter_bytes + held * self._kept_bytes / count
            if stages - 1 <= _FILL * count and needed <= _ROOM * self.model.limit_bytes:
                return count
        return self._counts[-1]

    @cached_property
    def _parameter_bytes(self) -> float:
        """Bytes of parameters with their state on a device, if all are divided evenly."""
        graph = self.cut.graph
        whole = sum(graph.tensors[op.outputs[0]].spec.bytes for op in graph.params)
        return self.model.parameter_copies * whole / self.model.cluster.num_devices

    @cached_property
    def _kept_bytes(self) -> float:
        """What a whole batch keeps at least on a device, with blocks that are run again."""
        graph = self.cut.graph
        again = Recomputation(graph, repeated_blocks(graph))
        least = LeastBytes.of(graph, self.model, again).within(self._counts[-1])
        return max(least - self._parameter_bytes, 0.0) * self._counts[-1]


def _fastest(answers: Sequence[Array], micro_batches: int, held: int, limit: float) -> Array:
    """[..., 6]: of answers [..., 6] the fastest that fits, infinite where none does.

    A part of a stage may do as one answer says and the rest as another: a mixture of one that is
    too big and one that fits just fits. One that runs blocks again is not mixed with one that does
    not.
    """

    def seconds(found: Array) -> Array:
        return micro_batches * (found[..., 0] + found[..., 1]) + found[..., 2]

    memory = [found[..., 3] + held * found[..., 4] + found[..., 5] for found in answers]
    again = [bool(found[..., 5].any()) for found in answers]
    best = np.full_like(answers[0], np.inf)
    whole = np.full(best.shape[:-1], np.inf)
    for small, size in enumerate(memory):
        for big, more in enumerate(memory):
            mixed = answers[small]
            fits = size <= limit
            if big != small:
                if again[big] != again[small]:
                    continue
                fits = fits & (more > limit)
                part = np.where(fits, (limit - size) / np.where(fits, more - size, 1.0), 0.0)
                mixed = mixed + part[..., None] * (answers[big] - mixed)
            better = fits & (seconds(mixed) < whole)
            whole = np.where(better, seconds(mixed), whole)
            best = np.where(better[..., None], mixed, best)
    return best


@dataclass(frozen=True)
class Placed:
    """The strategies of each group that place its operators as one of `plans` does.

    They are for a plan of a stage that is wanted soon.

    plans: operator -> its placements; of a group with other operators all strategies stay
    """

    plans: Sequence[Mapping[str, PlannedOp]]

    def __call__(self, builder: TableBuilder) -> list[Rows]:
        tables = builder.group_tables
        kept = [np.zeros(len(table.assign), dtype=bool) for table in tables]
        known: set[tuple[int, tuple[PlannedOp | None, ...]]] = set()
        for group, node in zip(builder.grouping.groups, builder.nodes, strict=True):
            for plan in self.plans:
                placed = tuple(plan.get(op.name) for op in group.ops)
                if (node, placed) not in known:
                    known.add((node, placed))
                    kept[node] |= tables[node].placing(placed)
        return [np.flatnonzero(mask if mask.any() else ~mask) for mask in kept]
