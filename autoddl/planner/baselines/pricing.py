"""The known schemes priced on one graph and cluster, each on its best topology.

`BaselinePricer` tries every family of `families.py` on every topology, with as few micro-batches as
its memory allows. A topology is a search problem like any other (`SchemeTables.of_variant`): the
ordinary search chooses what the scheme leaves open (where light operators run, which
redistributions), and the ordinary loop lowers the memory limit until the fullest moment fits. So a
baseline and a searched plan are compared by one ruler. Where memory binds, the same is tried with
the model's repeated blocks run again before their backward pass, and the faster one is kept.

Of a family's topologies the one whose lower bound (memory ignored) is the least is searched first,
and those whose bounds are above the best plan found are not searched at all.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...cost.model import CostModel
from ...graph.regions import Blocks
from ...plans.format import before, more
from ...plans.stage import PlannedBaseline
from ...sbp.mesh import Mesh
from ...search.algorithms import find_algorithm
from ...search.budget import Budget
from ...search.lagrangian import free_choice, may_fit, score_bound
from ..estimate import Estimator, least_in_flight_s
from ..fit_in_memory import FittedSearch
from ..options import MOST_IN_FLIGHT
from ..overlap import even
from ..realize import Candidate
from ..tables.group_table import WHOLE_SPACE
from ..tables.groups import MicroBatches
from ..tables.pair_prices import PairPrices
from ..tables.tables import Tables
from .coarse import CoarsePrices
from .families import Family, Variant, Way, families_of, variants
from .tables import GroupRows, SchemeTables, least_memories

# Above a scheme's optimum at most: a difference that no measurement would show. 0, half and twice
# of it gave the same plan of ResNet-50 on 2x8, as fast.
_GAP = 5e-4
# Less memory: smaller steps towards the least memory are not worth a pricing. 0.015 and 0.06 named
# the same least bytes of VGG13 on 16, ViT-S and AlexNet on 2x8 and GPT-6.8B on 64, as fast.
_CLEARLY = 0.03


@dataclass(frozen=True)
class Baseline:
    """A family at its best: what the plan records of it, and the choice; None if nothing fits."""

    record: PlannedBaseline
    found: Candidate | None = None

    @property
    def seconds(self) -> float:
        """Predicted seconds of an iteration; inf if the scheme does not fit the memory."""
        return math.inf if self.found is None else self.found.step_s


_Planned = tuple[Way, Candidate]


@dataclass(frozen=True)
class BaselinePricer:
    """Prices the baselines of a graph under `model`.

    counts: numbers of micro-batches to try, ascending
    again: what is run again, one or the other; the names are the same at any number
    families: what to try; () for all that are known for such a model
    prices: redistributions that have been priced on the mesh
    """

    micro: MicroBatches
    counts: Sequence[int]
    model: CostModel
    seed: int = 0
    again: Sequence[Blocks] = ((),)
    families: Sequence[Family] = ()
    prices: PairPrices | None = None

    def all(self) -> tuple[Baseline, ...]:
        """Every family at its best, in their order; none on one device."""
        return tuple(self.each())

    def each(self) -> Iterator[Baseline]:
        """`all`, one after the other."""
        tried = self._tried if self._mesh.num_axes else ()
        for number, family in enumerate(tried):
            found = variants(family, self._mesh)
            if found:
                with before(more(len(tried) - 1 - number, "known scheme")):
                    best = self._best(family, found)
                yield best

    def nearest(self) -> Baseline | None:
        """The fastest of all families; None if none fits.

        A family that cannot be faster than those before it is not priced: 0.2 to 0.7 of the time of
        `all` for ViT, BERT and GPT-3 175B on hosts of two kinds, with overlap.
        """
        known: Baseline | None = None
        for family in self._tried if self._mesh.num_axes else ():
            found = variants(family, self._mesh)
            if found and (known is None or self._may_beat(family, found, known)):
                best = self._best(family, found, known)
                known = best if best.found is not None else known
        return known

    def in_turns(self, known: Sequence[Baseline], below_s: float) -> tuple[Baseline, ...]:
        """What `all` gave, or the same with two micro-batches in flight where that is faster.

        below_s: what takes as long whatever its turns is not looked at
        """
        micro, counts = self.micro.in_turns(MOST_IN_FLIGHT), even(self.counts)
        turned = replace(self, micro=micro, counts=counts)
        for name in ("_topologies", "_prices", "_letters", "_rows"):
            turned.__dict__[name] = getattr(self, name)
        families = {family.name: family for family in self._tried}
        found: list[Baseline] = []
        for number, one in enumerate(known):
            with before(more(len(known) - 1 - number, "known scheme")):
                found.append(turned._turned(families[one.record.name], one, below_s) or one)
        return tuple(found)

    def _turned(self, family: Family, known: Baseline, below_s: float) -> Baseline | None:
        """A family with several micro-batches in flight, if that is faster than as it is known.

        Of its ways it is the first such one, and those that take least whatever the turns are come
        first, as turns take long to find.
        """
        if known.found is None:  # nor does more in flight fit
            return None
        most_s = self._serial_s(family, known.found)
        every = (self._ways(variants(family, self._mesh), blocks) for blocks in self.again)
        queue: list[tuple[float, int, Sequence[Way], Candidate]] = []

        def offer(number: int, ways: Sequence[Way]) -> None:
            while ways and self._computing_s(ways[0]) < known.seconds:
                if self._bound(ways[0]) >= most_s:
                    return
                tables = self._of_variant(ways[0])
                result = self._searches.search(tables.problem, math.inf)
                self._searches.check_interrupted()
                if result is not None:
                    found = Candidate(tables, result, self._looker.prices.paths)
                    least_s = least_in_flight_s(found.one_by_one, tables.micro_batches)
                    if least_s < min(known.seconds, below_s):
                        heapq.heappush(queue, (least_s, number, ways, found))
                    return
                ways = self._divided_ways(ways[1:])

        for number, ways in enumerate(itertools.chain.from_iterable(every)):
            offer(number, ways)
        while queue:
            _, number, ways, found = heapq.heappop(queue)
            if found.fits_with(replace(found.tables.again, in_flight=1)):
                if found.least_s >= known.seconds:
                    continue
                if found.fits and found.step_s < known.seconds:
                    return self._recorded(ways[0], found)
            offer(number, self._divided_ways(ways[1:]))
        return None

    def smallest(self, below_bytes: float) -> Baseline | None:
        """What needs the least, by lower and lower limits, if that is below so many bytes.

        Only of schemes that store parameters whole: the others' storages the search has, too.
        """
        families = [family for family in self._tried if not family.split_stored]
        least: Baseline | None = None
        while True:
            model = replace(self.model, memory_limit_bytes=below_bytes * (1 - _CLEARLY))
            found = replace(self, model=model, families=families).all()
            needed = {b.found.needed_bytes: b for b in found if b.found is not None}
            if not needed:
                return least
            below_bytes = min(needed)
            least = needed[below_bytes]

    def _best(
        self, family: Family, tried: Sequence[Variant], known: Baseline | None = None
    ) -> Baseline:
        """Running blocks again is tried where without it more micro-batches are needed."""
        topologies = self._ways(tried, self.again[0])
        best: _Planned | None = None
        if len(self.again) == 1 or any(ways[0].parts == self.counts[0] for ways in topologies):
            best = self._fastest(family, topologies, known)
        for blocks in self.again[1:]:
            if best is None or best[0].parts > self.counts[0]:
                topologies += self._ways(tried, blocks)
                best = self._fastest(family, topologies, known)
        return (known or self._too_large(family, tried)) if best is None else self._recorded(*best)

    def _ways(self, tried: Sequence[Variant], blocks: Blocks) -> list[Sequence[Way]]:
        """For each topology that divides the batch, the numbers of micro-batches that may fit."""
        limit, every = self.model.limit_bytes, []
        for variant in tried:
            counts = self._divided(variant)
            if not counts:
                continue
            first = [self._tables(counts[0], blocks)]
            if least_memories(first, counts[:1], variant)[0] > limit:
                needed = least_memories(self._known(blocks)[: len(counts)], counts, variant)
                counts = tuple(n for n, size in zip(counts, needed, strict=True) if size <= limit)
            every.append(self._divided_ways([Way(variant, parts, blocks) for parts in counts]))
        return [ways for ways in every if ways]

    def _divided_ways(self, ways: Sequence[Way]) -> Sequence[Way]:
        """The ways without those at the start whose data axes do not divide all operators."""
        while ways and not self._tables(ways[0].parts, ways[0].blocks).divides(ways[0].variant):
            ways = ways[1:]
        return ways

    def _fastest(
        self, family: Family, topologies: Sequence[Sequence[Way]], known: Baseline | None
    ) -> _Planned | None:
        """The fastest of the topologies' first ways whose fullest moment keeps to the limit.

        Where a way does not, the topology's next one counts, which costs no less, memory ignored.
        None if nothing fits, or is faster than what is known.
        """
        queue = [(self._computing_s(ways[0]), n, ways, False) for n, ways in enumerate(topologies)]
        heapq.heapify(queue)
        best: _Planned | None = None
        fastest = known and known.found
        while queue:
            fastest_s = math.inf if fastest is None else fastest.step_s
            beat_s = fastest_s if fastest is None else self._serial_s(family, fastest)
            bound_s, number, ways, is_priced = heapq.heappop(queue)
            if not is_priced:
                if bound_s < fastest_s:
                    heapq.heappush(queue, (self._bound(ways[0]), number, ways, True))
                continue
            if bound_s * (1 + _GAP) >= beat_s:
                break
            tables = self._of_variant(ways[0])
            result = self._searches.search(tables.problem, beat_s)
            self._searches.check_interrupted()
            if result is None and beat_s < math.inf and may_fit(tables.problem):
                continue  # there are plans, but none as fast
            found = result and Candidate(tables, result, self._looker.prices.paths)
            if found is not None and self._is_of_no_use(found, fastest_s):
                continue
            found = found and self._within_limit(found)
            if found is not None and found.least_s < fastest_s and found.step_s < fastest_s:
                fastest, best = found, (ways[0], found)
            rest = self._divided_ways(ways[1:]) if found is None else ()
            if rest:
                heapq.heappush(queue, (bound_s, number, rest, True))
        return best

    def _may_beat(self, family: Family, tried: Sequence[Variant], known: Baseline) -> bool:
        """Whether a topology may be faster; running blocks again makes none faster than without."""
        if known.found is None:
            return True
        beat_s = self._serial_s(family, known.found)
        every = ([Way(v, parts, self.again[0]) for parts in self._divided(v)] for v in tried)
        firsts = (ways[0] for ways in map(self._divided_ways, every) if ways)
        return any(self._bound(way) * (1 + _GAP) < beat_s for way in firsts)

    def _serial_s(self, family: Family, found: Candidate) -> float:
        """What a serial step of the family has to take less than to be faster than what was found.

        No topology hides more than it computes, and all divide computation alike.
        """
        hidden_s = family.most_hidden_s(found.one_by_one) if self.model.overlap else 0.0
        return found.step_s + hidden_s

    def _is_of_no_use(self, found: Candidate, beat_s: float) -> bool:
        """Whether with several micro-batches in flight it is too slow whatever their turns are."""
        if found.tables.again.in_flight == 1:
            return False
        return least_in_flight_s(found.one_by_one, found.tables.micro_batches) >= beat_s

    def _within_limit(self, found: Candidate) -> Candidate | None:
        """What was found, or what fits instead.

        Only itself with several micro-batches in flight, as turns take long to find; nor are they
        looked for where one in flight holds too much.
        """
        again = found.tables.again
        if found.is_roomy:
            return found
        if again.in_flight > 1:
            return found if found.fits_with(replace(again, in_flight=1)) and found.fits else None
        fits = self._searches.within_limit(found.tables, found.result, is_thorough=False)
        self._searches.check_interrupted()
        return fits

    def _recorded(self, way: Way, found: Candidate) -> Baseline:
        tables, result = found.tables, found.result
        compute_s = way.parts * sum(
            float(tables.table_of(group).compute_s[tables.strategy(result.choice, group)])
            for group in range(len(tables.grouping.groups))
        )
        name, step_s = way.variant.family.name, found.step_s
        exposed_s = max(step_s - compute_s, 0.0)  # all may be hidden, but for rounding
        record = PlannedBaseline(
            name, self._topology(way), way.parts, result.memory, step_s, exposed_s
        )
        return Baseline(record, found)

    def _too_large(self, family: Family, tried: Sequence[Variant]) -> Baseline:
        """The record of a family that does not fit, with about the bytes that it needs."""
        least: list[tuple[float, int, Way]] = []
        blocks = self.again[-1]
        for number, variant in enumerate(tried):
            counts = self._divided(variant)
            if counts:
                needed = least_memories(self._known(blocks)[: len(counts)], counts, variant)
                least.append((float(needed[-1]), number, Way(variant, counts[-1], blocks)))
        if not least:
            topology = tried[0].topology(self._mesh)
            return Baseline(PlannedBaseline(family.name, topology, 1, None))
        memory, _, way = min(least, key=lambda item: item[:2])
        return Baseline(PlannedBaseline(family.name, self._topology(way), way.parts, memory))

    def _topology(self, way: Way) -> str:
        return way.variant.topology(self._mesh) + (", blocks run again" if way.blocks else "")

    def _divided(self, variant: Variant) -> tuple[int, ...]:
        """The numbers of micro-batches whose rows divide over the scheme's data axes."""
        rows = self.micro.whole.batch
        devices = self._mesh.extent(variant.data_axes(self._mesh))
        counts = tuple(n for n in self.counts if (rows // n) % devices == 0)
        return counts if counts and self._tables(self.counts[0], ()).divides(variant) else ()

    def _bound(self, way: Way) -> float:
        """Seconds that no plan of the way falls below, nor one in more micro-batches."""
        tables = self._of_variant(way)
        free = free_choice(tables.problem, _GAP)
        self._restricted[way] = replace(tables, problem=replace(tables.problem, free=free))
        return score_bound(tables.problem, free, 0.0)

    def _computing_s(self, way: Way) -> float:
        return self._tables(way.parts, way.blocks).computing_s(way.variant)

    def _of_variant(self, way: Way) -> Tables:
        if way not in self._restricted:
            tables = self._tables(way.parts, way.blocks)
            self._restricted[way] = tables.of_variant(way.variant)
        return self._restricted[way]

    def _known(self, blocks: Blocks) -> tuple[SchemeTables, ...]:
        """At the first numbers of micro-batches, which tell the memory at all others."""
        return tuple(self._tables(parts, blocks) for parts in self.counts[:3])

    def _tables(self, parts: int, blocks: Blocks) -> SchemeTables:
        key = parts, bool(blocks)
        if key not in self._made:
            grouping = self.micro.grouping(parts)
            self._made[key] = SchemeTables(
                grouping, self.micro.again(parts, blocks), self.model, parts, self._prices,
                self._topologies, self._letters, self._rows.setdefault(parts, {}),
            )  # fmt: skip
        return self._made[key]

    @property
    def _mesh(self) -> Mesh:
        return self.model.cluster.mesh

    @cached_property
    def _looker(self) -> Estimator:
        comm = self.model.comm
        prices = self.prices or PairPrices(comm.mesh, comm.price, comm.collectives)
        return Estimator(self.micro, self.model, WHOLE_SPACE, prices)

    @cached_property
    def _searches(self) -> FittedSearch:
        return FittedSearch(self._looker, find_algorithm("auto"), Budget(gap=_GAP), self.seed)

    @cached_property
    def _tried(self) -> tuple[Family, ...]:
        return tuple(self.families) or families_of(self.micro.whole)

    @cached_property
    def _topologies(self) -> tuple[tuple[int, ...], ...]:
        every = (variant for family in self._tried for variant in variants(family, self._mesh))
        return tuple(dict.fromkeys(variant.tensor_axes for variant in every))

    @cached_property
    def _prices(self) -> CoarsePrices:
        return CoarsePrices(self.model.comm, self._topologies)

    @cached_property
    def _letters(self) -> dict[str, Mapping[str, str]]:
        graph = self.micro.graph(self.counts[0])
        return {f.name: {} if f.letters is None else f.letters(graph) for f in self._tried}

    @cached_property
    def _restricted(self) -> dict[Way, Tables]:
        return {}

    @cached_property
    def _made(self) -> dict[tuple[int, bool], SchemeTables]:
        return {}

    @cached_property
    def _rows(self) -> dict[int, dict[str, GroupRows]]:
        """Number of micro-batches -> the strategies of the groups, whatever is run again."""
        return {}


@dataclass(frozen=True)
class Schemes:
    """The known schemes beside a plan, not yet priced.

    plan: None if nothing was found; tries_two: micro-batches in flight, too, where that may be
          faster than the plan
    """

    pricer: BaselinePricer
    plan: Candidate | None
    tries_two: bool

    def all(self) -> tuple[tuple[Baseline, ...], Candidate | None]:
        """The schemes, and the plan: after Ctrl-C none, if there is a plan."""
        try:
            rivals = self.pricer.all()
            if rivals and self.tries_two:
                rivals = self.pricer.in_turns(rivals, cost_to_beat(self.plan))
        except KeyboardInterrupt:
            if self.plan is None:
                raise
            return (), self.plan.ended("interrupted")
        return rivals, self.plan

    def nearest(self) -> Baseline | None:
        """The fastest of the schemes, if one fits; it alone with two micro-batches in flight."""
        found = self.pricer.nearest()
        if found is None or not self.tries_two:
            return found
        (found,) = self.pricer.in_turns([found], cost_to_beat(self.plan))
        return found

    def on(self, model: CostModel) -> Schemes:
        """The same beside a plan that is not on their cluster."""
        return replace(self, pricer=replace(self.pricer, model=model, prices=None))


def cost_to_beat(found: Candidate | None) -> float:
    """What a scheme must cost less than; tables in single precision leave a relative error."""
    return math.inf if found is None else found.step_s * (1 - 1e-6)
