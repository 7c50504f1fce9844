"""Searches with several numbers of micro-batches, and with blocks that are run again.

If the smallest number of micro-batches that may fit (AutoDDL section 5.1: the largest possible
micro-batch) gives a plan that is hardly slower (`found.NEAR_FREE`) than one without a memory limit,
that is the plan. Else more micro-batches, and running all of the model's repeated blocks (`blocks`)
again, may be faster: quick looks (`look`) tell which of them are worth a search (`searches`), in
which order, and the fastest plan found is the result. If one is far above its look, that is
corrected, and others may be worth a search after all.

Of a plan that recomputes, as few blocks as fit are recomputed, the first ones: at the placements
found, and then by a search with these few. `Attempts.best` returns the result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..cost.account import Cost, account, total
from ..cost.recompute import Blocks, Checkpointing, Recomputation
from ..graph.regions import repeated_blocks
from .found import NEAR_FREE, Found
from .look import WORTH_LOOK, Look, Looker
from .searches import Searches
from .tables.group_table import NoStrategy

_REFINEMENTS = 3
_WORTH_SEARCH = 1.15  # times the cost of the best look with, or without, recomputation
_WORTH_FAMILY = 1.5  # times the cost of the best look of all
_WORTH_IT = 0.003  # of the cost: so much faster must another plan be able to be


@dataclass
class Attempts:
    """The attempts at one plan.

    counts: numbers of micro-batches to try, ascending
    """

    counts: Sequence[int]
    searches: Searches
    _failed: set[tuple[int, Blocks]] = field(default_factory=set)
    _first_fits: dict[Blocks, int] = field(default_factory=dict)

    @property
    def looker(self) -> Looker:
        return self.searches.looker

    def best(self, checkpointing: Checkpointing) -> Found | None:
        """None if nothing fits. ValueError if all blocks are to be recomputed and there are none"""
        if checkpointing == "all" and not self.blocks:
            raise ValueError(
                "the model has no repeated blocks that could be recomputed; use "
                "checkpointing='auto' or 'none'"
            )
        best: Found | None = None
        families: list[Blocks] = [self.blocks] if checkpointing == "all" else [()]
        if checkpointing != "all":
            first = self._first_fit(())
            if first == 0 or self._looks_near_free(first):
                best = self._attempt(self.counts[first], math.inf, ())
                if best is not None and (best.is_near_free or best.result.end != "done"):
                    return best
        if checkpointing == "auto" and self.blocks:
            families.append(self.blocks)
        tried: set[tuple[int, Blocks]] = set()
        known = -1
        while known < len(self.looker.corrections):
            known = len(self.looker.corrections)
            beat_s = math.inf if best is None else self._worth(best, ())
            looks = [k for k in self._worth_search(families, beat_s) if k.key not in tried]
            tried |= {look.key for look in looks}
            best = self._fastest(looks, best, checkpointing)
            if best is not None and best.result.end != "done":
                return best
        if best is not None:
            return best
        found = [self._first_found(blocks) for blocks in families]
        return min(filter(None, found), key=lambda f: f.seconds, default=None)

    def _fastest(
        self, looks: list[Look], best: Found | None, checkpointing: Checkpointing
    ) -> Found | None:
        """The fastest plan of `looks`, the most promising first, or `best`.

        The looks learn what was found.
        """
        while looks:
            beat_s = math.inf if best is None else self._worth(best, looks[0].blocks)
            first = looks.pop(0)
            most_s = looks[0].seconds * WORTH_LOOK if looks else math.inf
            look = self.looker.look(*first.key, min(beat_s, most_s))
            if best is not None and best.key == look.key:
                self.looker.correct(look, best.seconds)
                continue
            if look.least_s >= beat_s:
                continue
            if looks and look.seconds > max(first.seconds, looks[0].seconds):
                looks = sorted([look, *looks], key=lambda other: other.seconds)
                continue
            found = self._attempt(look.parts, beat_s, look.blocks)
            self.looker.correct(look, beat_s if found is None else found.seconds)
            if found is None and best is None:
                self._failed.add(look.key)
            if found is not None and found.seconds < beat_s and checkpointing == "auto":
                found = self._with_fewer(found)
            if found is not None and (best is None or found.seconds < best.seconds):
                best = found
                if found.result.end != "done":
                    return best
        return best

    @cached_property
    def blocks(self) -> Blocks:
        """What can be recomputed: names are the same for every number of micro-batches."""
        return repeated_blocks(self.looker.micro.graph(self.counts[0]))

    def _looks_near_free(self, position: int) -> bool:
        parts = self.counts[position]
        free_s = self.looker.look(parts, (), 0.0).free_s
        look = self.looker.look(parts, (), free_s * (1 + 2 * NEAR_FREE))
        return look.seconds <= look.free_s * (1 + NEAR_FREE) < math.inf

    def _worth_search(self, families: Sequence[Blocks], beat_s: float) -> list[Look]:
        """What is worth a search of the whole space, the most promising first.

        families: blocks to recompute; beat_s: what takes as long is of no use
        """
        looks: list[Look] = []
        least = math.inf
        lows = {blocks: self._first_fit(blocks) for blocks in families}
        order = sorted(families, key=len, reverse=True)
        second = lows.get((), 0) + 1
        is_short = True  # of memory, without recomputation
        if len(order) == 2 and second < len(self.counts):
            least_parts = self.counts[lows[order[0]]]
            is_short = not self.looker.is_below_all(self.counts[second], order[0], least_parts)
        for blocks in order if is_short else order[::-1]:
            low = lows[blocks]
            counts = self.counts[low:]
            first = 0 if blocks else 1
            if not blocks and is_short:  # begin in the middle of what is left
                first = min((len(self.counts) - low) // 2, len(counts) - 1)
            enough = min(least * self.looker.worth_look, beat_s)
            found = self.looker.around_best(counts, first, blocks, enough)
            least = min([least, *(look.seconds for look in found)])
            looks += found
        ordered = sorted(looks, key=lambda look: look.seconds)
        return [k for k in ordered if k.seconds < math.inf and self._is_worth(k, ordered)]

    def _is_worth(self, look: Look, others: Sequence[Look]) -> bool:
        """Bounds tell by themselves; what another look found, costs hardly far more."""
        if look.bounds is not None:
            return True
        same = min(k.seconds for k in others if k.blocks == look.blocks)
        least = min(k.seconds for k in others)
        return look.seconds <= min(same * _WORTH_SEARCH, least * _WORTH_FAMILY)

    def _first_found(self, blocks: Blocks) -> Found | None:
        """The plan of the fewest micro-batches that fit."""
        for parts in self.counts[self._first_fit(blocks) :]:
            if (parts, blocks) in self._failed:
                continue
            found = self._attempt(parts, math.inf, blocks)
            if found is not None:
                return found
        return None

    def _worth(self, best: Found, blocks: Blocks) -> float:
        """Seconds that another plan, recomputing `blocks`, must stay below to be worth a search.

        With fewer blocks it may take less time than its bound says.
        """
        gap = 0.0 if blocks else self.searches.budget.gap
        return min(best.seconds * (1 - _WORTH_IT), best.seconds / (1 + gap))

    def _attempt(self, parts: int, beat_s: float, blocks: Blocks) -> Found | None:
        """A search, if the micro-batches can be divided as the space asks, or there is one only."""
        try:
            return self.searches.attempt(parts, beat_s, blocks)
        except NoStrategy:
            if len(self.counts) == 1:
                raise
            return None

    def _first_fit(self, blocks: Blocks) -> int:
        """Position of the first of `counts` whose memory may fit, by bisection.

        Whether it does fit, the attempt itself finds out.
        """
        if blocks in self._first_fits:
            return self._first_fits[blocks]

        def may_fit(position: int) -> bool:
            limit = self.looker.model.limit_bytes
            return limit == math.inf or (
                self.looker.least_bytes(self.counts[position], blocks) <= limit
            )

        low, high = 0, len(self.counts)
        if high == 1 or may_fit(0):
            high = 0
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if may_fit(middle) else (middle, high)
        return self._first_fits.setdefault(blocks, min(high, len(self.counts) - 1))

    def _with_fewer(self, found: Found) -> Found:
        """As few of the first blocks as fit, at the placements found and by another search."""
        for _ in range(_REFINEMENTS):
            blocks = found.tables.again.blocks
            graph = found.tables.grouping.graph
            if not blocks or not found.fits_with(Recomputation(graph, blocks[:-1])):
                return found
            low, high = 0, len(blocks) - 1
            while low < high:
                middle = (low + high) // 2
                if found.fits_with(Recomputation(graph, blocks[:middle])):
                    high = middle
                else:
                    low = middle + 1
            fewer = blocks[:high]
            searched = self._attempt(found.tables.micro_batches, math.inf, fewer)
            if searched is None:
                return found
            cost = self._cost(found, fewer)
            if cost.iteration_s < searched.seconds:
                result = dataclasses.replace(
                    found.result,
                    cost=cost.iteration_s,
                    memory=cost.memory_bytes,
                    lower_bound=searched.result.lower_bound,
                )
                # the choice is of what was found, whose tables may have other strategies
                tables = dataclasses.replace(found.tables, again=searched.tables.again)
                cheaper = Found(tables, result, self.looker.prices.paths)
                searched = cheaper if cheaper.excess_bytes <= 0 else searched
            found = searched
        return found

    def _cost(self, found: Found, blocks: Blocks) -> Cost:
        """What the choice costs if `blocks` are recomputed."""
        parts, graph = found.tables.micro_batches, found.tables.grouping.graph
        again = Recomputation(graph, blocks)
        return total(account(graph, self.looker.model, parts, *found.placed, again).values())
