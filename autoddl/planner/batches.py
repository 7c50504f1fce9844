"""The outer choice: how many micro-batches, and which repeated blocks are run again.

If the smallest number of micro-batches that may fit (AutoDDL section 5.1: the largest possible
micro-batch) gives a plan that is hardly slower (`realize.NEAR_FREE`) than one without a memory
limit, that is the plan. Else more micro-batches, and running all of the model's repeated blocks
again, may be faster. Estimates (`estimate`), on five mesh axes or more lower bounds, tell which of
them are worth a search (`fit_in_memory`), the least first, and the fastest plan found is the
result. If one is far above its estimate, that is corrected, and others may be worth a search.

Gradients travel beside the backward pass of the last micro-batch. So the plan that overlaps is
sought in fewer micro-batches, too (`overlapped`), the most promising first. BERT on HAP's 32
devices takes 1.20 s a step in one, which as a serial step is slower than in two, and 1.41 s in two.
Where memory is short and what is faster does not fit, or two in flight are no faster, it is sought
in the next more, too, which have room: without that 8 of 17 MLPs on four laptops took 1.03 to 1.3
times as long.

Of a plan that runs blocks again, as few blocks as fit are run again, the first ones: at the
placements found, and then by a search with these few. `Batches.best` returns the result.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..cost.account import Cost, account, total
from ..cost.recompute import Checkpointing
from ..graph.regions import Blocks, repeated_blocks
from ..plans.format import before, format_seconds, more
from ..search.budget import Ended
from ..search.problem import ROUNDING
from .estimate import Estimate, Estimator, evenly_s
from .fit_in_memory import FittedSearch
from .options import PlanOptions
from .overlap import Overlapped
from .realize import NEAR_FREE, Candidate
from .tables.group_table import NoStrategy

_log = logging.getLogger(__name__)
# 1 and 6 refinements, and 0.001 and 0.01 for what is worth it, gave the same plans of three models.
_SOME = 2  # numbers of micro-batches, at most, in which some blocks are tried
_REFINEMENTS = 3  # searches with ever fewer blocks run again
_WORTH_IT = 0.003  # of the cost: so much faster must another plan be able to be
_WORTH_OVERLAP = 0.01  # likewise of a plan that overlaps, where a search takes longer


def overlapped(batches: Batches, first: Candidate, options: PlanOptions) -> tuple[Candidate, bool]:
    """The best plan that overlaps, and whether two micro-batches in flight were tried.

    first: the best serial plan, with whose micro-batches it begins
    """
    one, done = batches.one, list[Overlapped]()
    turns = () if options.in_flight else batches.counts

    def search(serial: Candidate, tries: int, below_s: float = math.inf) -> Candidate:
        done.append(Overlapped(one, turns, one.estimator.model, [serial], below_s))
        with before(more(tries, "other number of micro-batches", "other numbers", most=True)):
            return done[-1].search()

    best = search(first, sum(n < first.key[0] for n in batches.counts))
    try:
        more_too = done[0].may_gain(_WORTH_OVERLAP)
        fewer = batches.others(first, best, options.checkpointing, more_too)
        while fewer and not one.is_over and not best.result.is_stopped:
            least_s, parts = fewer.pop(0)
            if least_s >= best.step_s * (1 - _WORTH_OVERLAP):
                break
            serial = Batches((parts,), one).best(options.checkpointing)
            found = serial and search(serial, len(fewer), best.step_s)
            if found and found.step_s < best.step_s:
                best = found
            elif found and found.result.is_stopped:  # Ctrl-C ends what follows, too
                best = best.ended(found.result.end)
    except (KeyboardInterrupt, Ended) as ended:
        best = best.ended("budget" if isinstance(ended, Ended) else "interrupted")
    return best, any(own.tried_two for own in done)


@dataclass
class Batches:
    """The searches for one plan.

    counts:  numbers of micro-batches to try, ascending
    one:     the search at a given number and given blocks
    below_s: a plan that takes as long is of no use
    first:   a number to begin with, and whether blocks are run again then; None: not known
    runs_again: a first plan that is wanted soon runs blocks again, if there are some
    """

    counts: Sequence[int]
    one: FittedSearch
    below_s: float = math.inf
    first: tuple[int, bool] | None = None
    runs_again: bool = False
    _failed: set[tuple[int, Blocks]] = field(default_factory=set)
    _first_fits: dict[tuple[Blocks, bool], int] = field(default_factory=dict)
    _found: dict[tuple[int, Blocks, bool], Candidate] = field(default_factory=dict)
    _best: Candidate | None = None

    @property
    def estimator(self) -> Estimator:
        return self.one.estimator

    def best(self, checkpointing: Checkpointing) -> Candidate | None:
        """None if nothing fast enough fits. ValueError if blocks are to be recomputed and none are.

        Ctrl-C ends the search with the best so far, if there is one. So does a budget of seconds,
        for which some plan is found first and then better ones.
        """
        try:
            if self.one.budget.seconds < math.inf:
                with before("better plans"):
                    self._first(checkpointing)
                self.estimator.check = self._check
            found = self._best_of_all(checkpointing)
        except (KeyboardInterrupt, Ended) as ended:
            if self._best is None:
                raise
            return self._best.ended("budget" if isinstance(ended, Ended) else "interrupted")
        if found is not None and found.result.is_stopped:  # maybe before it was any good
            assert self._best is not None
            return self._best.ended(found.result.end)
        return found

    def _check(self) -> None:
        """Raises KeyboardInterrupt after Ctrl-C; Ended if there is a plan and no more time."""
        self.one.check_interrupted()
        if self._best is not None and self.one.is_over:
            raise Ended

    def _first(self, checkpointing: Checkpointing) -> None:
        """Some plan that fits, soon: in the fewest micro-batches that probably fit at once.

        Blocks are run again only where nothing else seems to fit one micro-batch.
        """
        whole, self.one = self.one, self.one.rough()
        keeps = checkpointing == "auto" and not (self.runs_again and self.blocks)
        try:
            if checkpointing == "none" or keeps and self._first_fit(()) == 0:
                found = self._first_found((), self._first_fit((), has_room=True))
                if found is not None or checkpointing == "none" or not self.blocks:
                    return
            self._first_found(self.blocks, self._first_fit(self.blocks, has_room=True))
        finally:
            self.one = whole

    def _best_of_all(self, checkpointing: Checkpointing) -> Candidate | None:
        if checkpointing == "all" and not self.blocks:
            raise ValueError(
                "the model has no repeated blocks that could be recomputed; use "
                "checkpointing='auto' or 'none'"
            )
        if self.below_s < math.inf and self._free_s(self.counts[0]) >= self.below_s:
            return None
        best = self._at_first(checkpointing)
        if best is not None and best.result.is_stopped:
            return best
        families: list[Blocks] = [self.blocks] if checkpointing == "all" else [()]
        if checkpointing != "all" and best is None:
            first = self._first_fit(())
            if self._may_fit(first, ()) and self._seems_near_free(first):
                with before("other searches" if len(self.counts) > 1 or self.blocks else ""):
                    best = self._search(self.counts[first], self.below_s, ())
                if best is not None and (best.is_near_free or best.result.is_stopped):
                    return best
                if best is None:
                    self._failed.add((self.counts[first], ()))
        if checkpointing == "auto" and self.blocks:
            families.append(self.blocks)
        families = [b for b in families if self._may_fit(self._first_fit(b), b)]
        tried: set[tuple[int, Blocks]] = set()
        known = -1
        while known < len(self.estimator.corrections):
            known = len(self.estimator.corrections)
            beat_s = self._beat_s(best, ())
            estimates = [k for k in self._worth_search(families, beat_s) if k.key not in tried]
            tried |= {estimate.key for estimate in estimates}
            best = self._fastest(estimates, best, checkpointing)
            if best is not None and best.result.is_stopped:
                return best
        if best is not None or self.below_s < math.inf:
            return self._with_some(best) if best and len(families) > 1 else best
        found = [self._first_found(blocks, self._first_fit(blocks)) for blocks in families]
        return min(filter(None, found), key=lambda f: f.seconds, default=None)

    def _at_first(self, checkpointing: Checkpointing) -> Candidate | None:
        """The plan to begin with, if it is known where and there is one."""
        if self.first is None or self.first[0] not in self.counts:
            return None
        parts, runs_again = self.first
        found = self._search(parts, self.below_s, self.blocks if runs_again else ())
        return self.with_fewer(found) if found and checkpointing == "auto" else found

    def _fastest(
        self, estimates: list[Estimate], best: Candidate | None, checkpointing: Checkpointing
    ) -> Candidate | None:
        """The fastest plan of `estimates`, the most promising first, or `best`.

        The estimates learn what was found.
        """
        while estimates:
            beat_s = self._beat_s(best, estimates[0].blocks)
            first = estimates.pop(0)
            most_s = estimates[0].seconds if estimates else math.inf
            estimate = self.estimator.estimate(*first.key, min(beat_s, most_s))
            if best is not None and best.key == estimate.key:
                self.estimator.correct(estimate, best.seconds)
                continue
            if estimate.seconds >= beat_s or estimate.key in self._failed:
                continue
            if estimates and estimate.seconds > max(first.seconds, estimates[0].seconds):
                estimates = sorted([estimate, *estimates], key=lambda other: other.seconds)
                continue
            with before(more(len(estimates), "search", "searches", most=True)):
                found = self._search(estimate.parts, beat_s, estimate.blocks)
            self.estimator.correct(estimate, beat_s if found is None else found.seconds)
            if found is None and best is None:
                self._failed.add(estimate.key)
            if found is not None and found.seconds < beat_s and checkpointing == "auto":
                found = self.with_fewer(found)
            if found is not None and (best is None or found.seconds < best.seconds):
                best = found
                if found.result.is_stopped:
                    return best
        return best

    def _with_some(self, best: Candidate) -> Candidate:
        """A plan that runs some blocks again, where it may take less than `best` and all do not.

        Without it eight layers of an MLP in 0.6 of their memory took 1.23 times as long.
        """
        every = len(self.blocks)
        for parts in [n for n in self.counts if n <= best.key[0]][: -_SOME - 1 : -1]:
            if (parts, self.blocks) in self.estimator.corrections:
                continue
            free_s, each_s, some = self.estimator.with_some(parts, self.blocks)
            found, beat_s = None, self._beat_s(best, self.blocks)
            while found is None and some < every and free_s + some * each_s < beat_s:
                found = self._search(parts, beat_s, self.blocks[:some])
                some += max(1, (every - some) // 2)
            if found is not None:
                best = min(best, self.with_fewer(found), key=lambda own: own.seconds)
        return best

    def others(
        self, serial: Candidate, best: Candidate, checkpointing: Checkpointing, more_too: bool
    ) -> list[tuple[float, int]]:
        """Other micro-batches than a serial plan's, whose plans may overlap in less than the best.

        Each with the seconds of the least step that may be, the most promising first.
        more_too: where memory is short, the next more, too
        """
        found: list[tuple[float, int]] = []
        if self.one.is_over or not self.one.algorithm.proves_bound:
            return found
        fewest = self.fewest(checkpointing)
        more = [n for n in self.counts if n > serial.key[0]][: more_too and not serial.is_near_free]
        for parts in (*(n for n in self.counts if fewest <= n < serial.key[0]), *more):
            if self.one.is_over or best.result.is_stopped:
                break
            with suppress(NoStrategy):
                most_s = best.step_s * (1 - _WORTH_OVERLAP)
                least_s = self._least_overlapped_s(parts, serial, most_s, checkpointing)
                found.append((least_s, parts))
        return sorted(found)

    def _least_overlapped_s(
        self, parts: int, serial: Candidate, most_s: float, checkpointing: Checkpointing
    ) -> float:
        """Seconds of the least step with overlap, as far as estimates tell; `most_s` is enough.

        None computes in less time than all operators, each divided evenly over all devices, and
        those of blocks that run again twice. One micro-batch hides no more than it computes, and
        buckets save no more than the latencies of their gradients.
        """
        evenly = parts * evenly_s(self.estimator.micro.graph(parts), self.estimator.model)
        if evenly >= most_s or parts > serial.key[0]:  # of more of them more may be hidden
            return evenly
        compute_s = self._cost(serial, ()).compute_s
        least: dict[Blocks, float] = {} if checkpointing == "all" else {(): evenly}
        if checkpointing != "none" and self.blocks:
            least[self.blocks] = evenly * self._cost(serial, self.blocks).compute_s / compute_s
        # Of the backward pass alone: 2 of 21 small models in little memory were 3 and 7 % slower.
        hidden_s = compute_s / parts + sum(alpha_s for alpha_s, _ in serial.maker.prices)
        for blocks, least_s in least.items():
            if not self._may_fit(self.counts.index(parts), blocks):
                least[blocks] = math.inf
            elif least_s < most_s:
                estimate = self.estimator.estimate(parts, blocks, most_s + hidden_s)
                least[blocks] = max(least_s, estimate.seconds - hidden_s)
        return min(least.values())

    def fewest(self, checkpointing: Checkpointing) -> int:
        """The least number of micro-batches that may fit, as far as estimates tell."""
        kept, again = checkpointing != "all", checkpointing != "none" and bool(self.blocks)
        families = [(), self.blocks][not kept : 1 + again]
        return self.counts[min(self._first_fit(blocks) for blocks in families)]

    @cached_property
    def blocks(self) -> Blocks:
        """What can be recomputed: names are the same for every number of micro-batches."""
        return repeated_blocks(self.estimator.micro.graph(self.counts[0]))

    def _free_s(self, parts: int) -> float:
        """Without a memory limit; more micro-batches take no less, nor do blocks run again."""
        return self.estimator.estimate(parts, (), 0.0).free_s

    def _seems_near_free(self, position: int) -> bool:
        parts = self.counts[position]
        free_s = self._free_s(parts)
        estimate = self.estimator.estimate(parts, (), free_s * (1 + 2 * NEAR_FREE))
        return estimate.seconds <= estimate.free_s * (1 + NEAR_FREE) < math.inf

    def _worth_search(self, families: Sequence[Blocks], beat_s: float) -> list[Estimate]:
        """The numbers of micro-batches and blocks that are worth a search, most promising first.

        families: blocks to recompute; beat_s: what takes as long is of no use
        """
        estimates: list[Estimate] = []
        least = math.inf
        lows = {blocks: self._first_fit(blocks) for blocks in families}
        order = sorted(families, key=len, reverse=True)
        second = lows.get((), 0) + 1
        is_short = True  # of memory, without recomputation
        if len(order) == 2 and second < len(self.counts):
            least_parts = self.counts[lows[order[0]]]
            is_short = not self.estimator.is_below_all(self.counts[second], order[0], least_parts)
        for blocks in order if is_short else order[::-1]:
            low = lows[blocks]
            counts = self.counts[low:]
            first = 0 if blocks else 1
            if not blocks and is_short:  # begin in the middle of what is left
                first = min((len(self.counts) - low) // 2, len(counts) - 1)
            enough = min(least, beat_s)
            knows_none = enough == self.below_s < math.inf
            found = self.estimator.around_best(counts, first, blocks, enough, knows_none)
            least = min([least, *(estimate.seconds for estimate in found)])
            estimates += found
        ordered = sorted(estimates, key=lambda estimate: estimate.seconds)
        return [estimate for estimate in ordered if estimate.seconds < math.inf]

    def _first_found(self, blocks: Blocks, first: int) -> Candidate | None:
        """The plan of the fewest micro-batches that fit, from this position of `counts` on."""
        for parts in self.counts[first:]:
            if (parts, blocks) in self._failed:
                continue
            found = self._search(parts, math.inf, blocks)
            if found is not None:
                return found
        return None

    def _beat_s(self, best: Candidate | None, blocks: Blocks) -> float:
        """Seconds that another plan, recomputing `blocks`, must stay below to be worth a search.

        With fewer blocks it may take less time than its bound says.
        """
        if best is None:
            return self.below_s
        gap = 0.0 if blocks else self.one.budget.gap
        return min(best.seconds * (1 - _WORTH_IT), best.seconds / (1 + gap))

    def _search(self, parts: int, beat_s: float, blocks: Blocks) -> Candidate | None:
        """A search, if the micro-batches can be divided as the space asks, or there is one only."""
        self._check()
        key = parts, blocks, self.one.is_rough
        if key in self._found:  # with fewer blocks again
            return self._found[key] if self._found[key].seconds < beat_s else None
        try:
            found = self.one.plan(parts, beat_s, blocks)
        except NoStrategy:
            if len(self.counts) == 1:
                raise
            return None
        if found is not None and not found.result.is_stopped:
            self._found[key] = found
        if found is not None and (self._best is None or found.seconds < self._best.seconds):
            self._best = found
            again = f", {len(blocks)} blocks run again" if blocks else ""
            seconds = format_seconds(found.seconds)
            counted = f"{parts} micro-batch{'es' if parts > 1 else ''}"
            _log.info("best so far %s with %s%s", seconds, counted, again)
        return found

    def _first_fit(self, blocks: Blocks, has_room: bool = False) -> int:
        """Position of the first of `counts` whose memory may fit, by bisection.

        Whether it does fit, the attempt itself finds out. has_room: also for the inside of one
        block that is run again, divided evenly: 14 of 15 GPTs on 32 to 8192 devices then fitted
        """
        if (blocks, has_room) in self._first_fits:
            return self._first_fits[blocks, has_room]
        low, high = 0, len(self.counts)
        if high == 1 or self._may_fit(0, blocks, has_room):
            high = 0
        while low + 1 < high:
            middle = (low + high) // 2
            fits = self._may_fit(middle, blocks, has_room)
            low, high = (low, middle) if fits else (middle, high)
        return self._first_fits.setdefault((blocks, has_room), min(high, len(self.counts) - 1))

    def _may_fit(self, position: int, blocks: Blocks, has_room: bool = False) -> bool:
        """Whether the memory for as many micro-batches may suffice; if not, no plan of them fits.

        has_room: of `_first_fit`
        """
        estimator, parts = self.estimator, self.counts[position]
        limit = estimator.model.limit_bytes
        if limit == math.inf:
            return True
        least = estimator.least_bytes(parts, blocks)
        if has_room and blocks:
            least += (estimator.least_bytes(parts, ()) - least) / len(blocks)
        return least * (1 - ROUNDING) <= limit

    def with_fewer(self, found: Candidate) -> Candidate:
        """The plan with as few blocks run again as fit, placed as before or searched anew."""
        for _ in range(_REFINEMENTS):
            self._check()
            again, blocks = found.tables.again, found.tables.again.blocks
            high = found.fewest_again(self._check)
            if high == len(blocks):
                return found
            parts, fewer = key = found.tables.micro_batches, blocks[:high]
            cost = self._cost(found, fewer)
            most_s = cost.iteration_s
            searched = None if key in self._failed else self._search(parts, most_s, fewer)
            if searched is None or most_s < searched.seconds:
                bounds = self.estimator.estimate(parts, fewer).bounds
                lower = bounds.bound if bounds and not searched else math.inf
                bound = min((searched or found).result.lower_bound, lower, most_s)
                own = {"cost": most_s, "memory": cost.memory_bytes, "lower_bound": bound}
                # the choice is of what was found, whose tables may have other strategies
                tables = replace(found.tables, again=replace(again, blocks=fewer))
                result = replace(found.result, **own)
                cheaper = Candidate(tables, result, self.estimator.prices.paths)
                searched = cheaper if cheaper.excess_bytes <= 0 else searched
            if searched is None:
                return found
            found = searched
        return found

    def _cost(self, found: Candidate, blocks: Blocks) -> Cost:
        """What the choice costs if `blocks` are recomputed."""
        parts, graph = found.tables.micro_batches, found.tables.grouping.graph
        again = replace(found.tables.again, blocks=blocks)
        return total(account(graph, self.estimator.model, parts, *found.placed, again).values())
