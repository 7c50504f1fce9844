"""The plan of one mesh whose communication runs beside its computation.

The seconds of a step that overlaps are no sum of what groups of operators cost. So plans are
searched at prices of computation and communication, at which they are, and compared by their
simulated steps. Of C seconds of computation in a step, A of redistributions between and inside
operators, H of what else is communicated (the exchange of gradients, and gathers of ZeRO's stage 3;
of each gradient and parameter the last one takes y seconds in all), and b of the last backward pass

    one micro-batch at a time    T >= C + A + max(0, y - b)
    two in flight                T >= max(C, A + H, C - b + y)

as gradients leave once all micro-batches have made them, and so after the last forward pass; the
second line holds for both. Any mean of these is additive over groups, so that its least value over
all plans is a bound of all plans (`planner.tables`).

The search begins with the serial plan, so that no plan takes longer than that one would. Then come
two searches, at its micro-batches and blocks, among its strategies: at a LIKELY price of the
exchange, and at the price where the plans known so far have their greatest minimum (where a plan
turns out not to fit the memory, perhaps a third). The bound of a price comes first and cheaply; if
a known plan is near it, no plan is looked for. Two micro-batches in flight
(`plans.schedule.duplex`) are tried where one at a time leaves enough communication exposed, with
the strategies of the plans that were found. HiDup's own search (SoCC 2022, section 4.2) is exact on
a chain of stages without a mesh.

A plan of which all those bounds are low may be best at no mean of them. So of a small model, or
stage, the choices follow of which none reaches the best step so far (`search.elimination.below`). A
step is between the greatest of them and the serial step: in the order of the sum of both some are
simulated. Parameters are whole in these; each bound has the storage that suits it best. 50 small
models in two stages take 0.9 % less for it, nine of them 1 to 12 %.

Half a batch does not compute in half the time. So no plan takes less than all operators, each
divided evenly over all devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..cost.model import CostModel, Ends, StepPrice
from ..cost.sharded_storage import stage_at
from ..graph.graph import Graph, Op
from ..graph.regions import Blocks
from ..sbp.redistribute import PathTable
from ..search.budget import Ended
from ..search.elimination import Choices, below, eliminate
from ..search.problem import Problem, SearchResult
from .estimate import (
    Estimator,
    StepParts,
    after_passes,
    any_in_flight,
    evenly_s,
    least_in_flight_s,
    one_at_a_time,
)
from .fit_in_memory import FittedSearch
from .options import MOST_IN_FLIGHT
from .realize import Candidate
from .tables.storage_table import GroupTable
from .tables.tables import TableBuilder, Tables, among_chosen

# Prices of the last exchange, where a serial plan's may be hidden and where it may not. Of 0.05 to
# 0.4 on fifteen cases from 2x2 to 8x8 that may: at most 1 % from the best of all but where
# computation hardly counts (then a serial plan is better), 0.1 and 0.3 up to 50 and 14 %. Of 0 to 1
# for BERT with experts on 8x8, which may not: the best plan is found from 0.6 on.
_LIKELY, _EXPECTED = 0.2, 0.6
# Half and twice of each of these (and 0 for what may be late, never for what is exposed) gave the
# same plans of VGG13 on 16 and of a small GPT on 2x2 devices, in times within 8 %.
_NEAR = 0.02  # above the bound: not worth another search
_GAP = 0.01  # that a search at a price may leave
_LATE = 0.1  # of the backward pass may be left where a gradient is late
_EXPOSED = 0.05  # above the bound: two micro-batches in flight may be worth a search
# Branch and bound. Of 92 small models (matrix products, attention, experts, residual blocks) on 2
# and 4 devices, without it 18 plans are 1 to 13 % slower than the best that any setting found, and
# gaps are 16 % in the mean, not 7 %; planning takes 0.45 of the time, 0.06 s a model.
_MOST_CHOICES = 1e15  # with 1e10 6 plans are slower by as much; with 1e30 none, in 1.3 of the time
_MOST_LEFT = 2_000  # with 500 plans are up to 0.3 % slower, with 8,000 no faster, 1.2 of the time
_SIMULATED = 30  # with 10 plans are up to 1.9 % slower, with 60 no faster, in 1.2 of the time


def even(counts: Sequence[int]) -> tuple[int, ...]:
    """The numbers of micro-batches that can be in flight two at a time: the even ones."""
    return tuple(n for n in counts if n % MOST_IN_FLIGHT == 0)


@dataclass
class Overlapped:
    """The search for the best plan that overlaps, from a serial one on.

    one:    the search that found it
    counts: numbers of micro-batches; two in flight are tried at the first even one that is no less
            than that of the serial plan; () for never
    model:  of serial steps
    known:  the plans so far, the serial one first
    below_s: a plan that takes as long is of no use
    """

    one: FittedSearch
    counts: Sequence[int]
    model: CostModel
    known: list[Candidate]
    below_s: float = math.inf
    tried_two: bool = False
    _has_turned: bool = False  # two micro-batches in flight were searched
    _is_interrupted: bool = False
    _searched_of: dict[int, SearchResult] = field(default_factory=dict)  # number of a known plan
    _fitting_of: dict[int, Candidate | None] = field(default_factory=dict)

    def search(self) -> Candidate:
        """The best plan, with a bound of all with its micro-batches and blocks, or more of them.

        After Ctrl-C, or once time is over, the best so far. An algorithm that proves nothing was
        asked for by name: its own plan stays.
        """
        if self.known[0].result.is_stopped or not self.one.algorithm.proves_bound:
            return self._bounded(-math.inf)
        try:
            return self._searched_whole()
        except (KeyboardInterrupt, Ended) as ended:
            self._is_interrupted = isinstance(ended, KeyboardInterrupt)
            end = "budget" if isinstance(ended, Ended) else "interrupted"
            return self._bounded(-math.inf).ended(end)

    def _searched_whole(self) -> Candidate:
        parts, blocks = self.known[0].key
        micro = self.one.estimator.micro
        if micro.whole.is_stage and micro.whole.gives_back:  # the price is the step itself
            return self._bounded(self._searched(self._highest(after_passes())))
        if micro.whole.is_stage:
            bound = self._searched(self._highest(one_at_a_time(self._ends(self.known[0]))))
            return self._bounded(self._branched(bound, [(self.one.estimator, parts)]))
        if micro.in_flight > 1:
            ends = self._ends(self.known[0])
            bound = self._searched(self._highest(any_in_flight(parts, ends)))
            return self._bounded(self._branched(bound, [(self.one.estimator, parts)]))
        bound = self._searched(self._likely())
        ends = self._ends(self.known[-1])
        counts = [n for n in even(self.counts) if n >= parts]
        least_s = counts[0] * evenly_s(micro.graph(counts[0]), self.model) if counts else math.inf
        if not self._is_near(least_s, _EXPOSED):
            other = self._searched(self._highest(any_in_flight(parts, ends)))
            bound, least_s = max(bound, other), max(least_s, other)
            if not self._is_near(least_s, _NEAR):
                self._two(counts[0], blocks)
        if self._best.tables.again.in_flight == 1 and not self._is_near(bound, _NEAR):
            bound = max(bound, self._searched(self._highest(one_at_a_time(ends))))
        every = [(self.one.estimator, parts), *((self._in_turns, n) for n in counts[:1])]
        return self._bounded(self._branched(min(bound, least_s), every))

    def _branched(self, bound: float, every: Sequence[tuple[Estimator, int]]) -> float:
        """A bound no lower than this one; of a small model a better plan is known then, if found.

        every: of one micro-batch in flight and of two the estimator and the micro-batches
        """
        blocks, found_s = self.known[0].key[1], math.inf
        for estimator, parts in every:
            builder = estimator.builder(parts, blocks)
            builder.prepare()
            if not _is_small(builder) or self.one.is_over:
                return bound
            if self._is_near(bound, self.one.budget.gap):
                return bound
            # those that a stage has in flight are not in its hands two at a time
            in_flight = 1 if estimator.micro.whole.is_stage else estimator.micro.in_flight
            ends = self._ends(self.known[0])
            best_s, paths = self._to_beat, self.known[0].paths
            found, own_s = _faster(builder, in_flight, ends, best_s, paths)
            found_s = min(found_s, own_s)
            if found is not None:
                self.known.append(found)
                self.tried_two |= in_flight > 1
        return max(bound, found_s)

    def _is_near(self, bound: float, share: float) -> bool:
        """Whether the best plan, or what is known elsewhere, takes that share more than a bound.

        Whether a plan fits takes long to find out: it is only if one that is so near might.
        """
        most_s = bound * (1 + share)
        if self.below_s <= most_s:
            return True
        return self._least_s <= most_s and self._best.step_s <= most_s

    @property
    def _least_s(self) -> float:
        """Seconds of the fastest of the known plans, whether or not it fits the memory."""
        return min(found.least_s for found in self.known)

    @property
    def _best(self) -> Candidate:
        """The fastest of the known plans that fit the memory, as the serial one does."""
        best: Candidate | None = None
        for number in sorted(range(len(self.known)), key=lambda n: self.known[n].least_s):
            least_s = self.known[number].least_s
            if best is not None and least_s >= best.step_s:
                break
            if number and least_s >= self.below_s:
                continue
            if number not in self._fitting_of:
                self._fitting_of[number] = self._fitting(number)
            found = self._fitting_of[number]
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
        assert best is not None
        return best

    def may_gain(self, share: float) -> bool:
        """Whether more micro-batches may save more than a share: what is faster does not fit.

        Or two in flight, which do not fit or have too little to hide, are not faster.
        """
        best = self._best
        is_one = self._has_turned and not best.turns
        return is_one or self._least_s < best.step_s * (1 - share)

    @property
    def _to_beat(self) -> float:
        return min(self._best.step_s, self.below_s)

    def _fitting(self, number: int) -> Candidate | None:
        """A known plan, or what fits instead."""
        found = self.known[number]
        if number not in self._searched_of or found.fits:
            return found
        if self._is_interrupted:
            return None
        own = found.tables, self._searched_of[number]
        fits = self.one.within_limit(*own, is_thorough=False, known=found)
        self.one.check_interrupted()
        found = None if fits is None else fits.serial()
        return found if found is not None and found.fits else None

    def _likely(self) -> StepPrice:
        """At which the best plan is looked for first."""
        ends = self._ends(self.known[0])
        parts = _parts_of(self.known[0], ends)
        last = _LIKELY if parts.last < parts.beside else _EXPECTED
        return StepPrice(1.0, 1.0, 0.0, last, 1 - last, 1, ends)

    def _ends(self, found: Candidate) -> Ends:
        """The ends of the backward pass; those gradients come late that delay this plan most.

        None of those that stage 3 may gather, as that may be hidden.
        """
        maker, graph = found.maker, found.maker.graph
        zero = self.one.estimator.space.zero
        trains = [
            any(t in graph.needs_grad and graph.producers[t].kind == "param" for t in own.op.inputs)
            for own in maker.operators
        ]
        final = max((n for n, does in enumerate(trains) if does), default=-1)
        first = final + (zero and final >= 0 and _may_be_gathered(graph, maker.operators[final].op))
        early = frozenset(own.op.name for own in maker.operators[max(first, 0) :])
        names: list[str] = []
        exchange_s = left_s = most_s = 0.0
        count = 0
        for own in maker.operators:
            far = left_s > _LATE * maker.backward_s
            if far or own.op.name in early or (zero and _may_be_gathered(graph, own.op)):
                break
            names.append(own.op.name)
            exchange_s += sum(maker.prices[number][1] for number in own.exchanged)
            if exchange_s - left_s > most_s:
                most_s, count = exchange_s - left_s, len(names)
            left_s += own.backward_s
        return Ends(early, frozenset(names[:count]), frozenset(names[: max(count - 1, 0)]))

    def _highest(self, prices: Sequence[StepPrice]) -> StepPrice:
        """The price at which the cheapest of the known plans costs most."""
        known = [_parts_of(found, prices[0].ends) for found in self.known]
        return max(prices, key=lambda price: min(parts.at(price) for parts in known))

    def _bounded(self, bound: float) -> Candidate:
        """The best plan so far, with this bound, or that of operators that are divided evenly."""
        best, cluster = self._best, self.model.cluster
        if not cluster.groups:
            parts = self.known[0].tables.micro_batches
            graph = self.one.estimator.micro.graph(parts)
            bound = max(bound, parts * evenly_s(graph, self.model))
        result = replace(best.result, lower_bound=min(bound, best.step_s))
        return replace(best, result=result).knowing(best)

    def _searched(self, price: StepPrice) -> float:
        """A bound; and the best plan at a price is known, unless one is so near to the bound."""
        if self.one.is_over:
            return -math.inf
        parts, blocks = self.known[0].key
        serial = self.one.estimator
        priced = replace(serial, model=replace(self.model, price=price), serial=serial)
        bounds = priced.estimate(parts, blocks).bounds
        if bounds is not None and self._is_near(bounds.bound, _GAP):
            return bounds.bound
        searched = replace(self.one, estimator=priced).approached(parts, blocks, _GAP)
        if searched is None:
            return -math.inf
        self.one.check_interrupted()
        tables, result = searched
        found = Candidate(replace(tables, model=self.model), result, self.known[0].paths).serial()
        self._searched_of[len(self.known)] = result
        self.known.append(found)
        return result.lower_bound

    @property
    def _in_turns(self) -> Estimator:
        """Of serial steps with two micro-batches in flight."""
        micro = self.one.estimator.micro.in_turns(MOST_IN_FLIGHT)
        return replace(self.one.estimator, micro=micro, corrections={})

    def _two(self, parts: int, blocks: Blocks) -> None:
        """The plans that were found with two micro-batches in flight, those that may be faster."""
        if self.one.is_over:  # the turns of a rough plan, whose blocks differ, took 16 s (GPT-36B)
            return
        best, below_s = self._best, self.below_s
        two = replace(self.one, estimator=self._in_turns)
        builder = two.estimator.builder(parts, blocks)
        self.tried_two = True
        for found in (best, self.known[-1]):
            tables = among_chosen(builder, found.tables, found.result.choice)
            result = tables and two.search(tables.problem, math.inf)
            two.check_interrupted()
            if tables is None:
                continue
            self._has_turned = True
            if result is None:
                continue
            turned = Candidate(tables, result, found.paths, found)
            least_s, most_s = least_in_flight_s(turned.one_by_one, parts), min(best.step_s, below_s)
            if least_s < most_s and turned.least_s < most_s and turned.fits:
                best = min(best, turned, key=lambda one: one.step_s)
                self.known.append(turned)


def _parts_of(found: Candidate, ends: Ends) -> StepParts:
    return StepParts.of(found.maker, found.tables.micro_batches, ends)


def _may_be_gathered(graph: Graph, op: Op) -> bool:
    """Whether ZeRO's stage 3 may gather one of its parameters."""
    spec = graph.spec(op)
    return any(
        graph.producers[tensor].kind == "param" and stage_at(spec, index, 3) == 3
        for index, tensor in enumerate(op.inputs)
    )


def _is_small(builder: TableBuilder) -> bool:
    """Whether a prepared builder's problem has so few choices."""
    sizes = [len(builder.group_tables[node].assign) for node in builder.nodes]
    return math.prod(sizes) <= _MOST_CHOICES


def _faster(
    builder: TableBuilder, in_flight: int, ends: Ends, best_s: float, paths: PathTable
) -> tuple[Candidate | None, float]:
    """The best plan found that fits and takes less than `best_s`, and a bound of all plans.

    builder: of serial steps, small; in_flight, ends: as `StepPrice` has them
    paths:   of the builder's prices
    """
    collectives = float(in_flight == 1)
    prices = [  # at which one of the bounds is all that counts
        StepPrice(1.0, collectives, 0.0, 0.0, 0.0, in_flight, ends),
        StepPrice(1.0, collectives, 0.0, 1.0, 0.0, in_flight, ends),
        StepPrice(0.0, 1.0, 1.0, 0.0, 0.0, in_flight, ends),
    ]
    problems = (_stored_best(builder.at_price(price)) for price in prices)
    bounds = [eliminate(problem, 0.0, frozenset()) for problem in problems]
    if bounds[0].node:
        return None, -math.inf
    left = below(bounds, best_s, _MOST_LEFT)
    return _best_of(left, builder.build(), best_s, paths), left.bound


def _best_of(left: Choices, tables: Tables, best_s: float, paths: PathTable) -> Candidate | None:
    """The best of the most promising choices, if it takes less than `best_s`."""
    problem, greatest = tables.problem, left.greatest
    choices = np.zeros((len(greatest), problem.num_variables), dtype=np.int64)
    choices[:, list(tables.variables)] = left.choices
    serial_s, memory = problem.evaluate_all(choices)
    order = np.argsort(greatest + serial_s, kind="stable")
    best, simulated = None, 0
    for number in order[memory[order] <= problem.memory_limit]:
        if greatest[number] >= best_s or simulated == _SIMULATED:
            continue
        simulated += 1
        own = float(serial_s[number]), float(memory[number])
        found = Candidate(tables, SearchResult(choices[number], *own, 1, "branch and bound"), paths)
        if found.least_s < best_s and found.fits and found.step_s < best_s:
            best, best_s = found, found.step_s
    if best is None:
        return None
    return replace(best, result=replace(best.result, evaluations=simulated)).knowing(best)


def _stored_best(builder: TableBuilder) -> Problem:
    """With the parameters of each group stored as suits the price best."""
    builder.ask()
    groups: list[GroupTable] = []
    for table in builder.priced():
        storage = builder.tables.storage(table)
        stored_s = 0.0 if storage is None else storage.seconds.min(axis=1)
        groups.append(replace(table, sync_s=table.sync_s + stored_s))
    return builder.apart(groups)
