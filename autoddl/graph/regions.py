"""Repeated blocks of a graph: runs of operators that occur several times in a row.

Leaving out sources and sinks, operators i and j are alike if they have the same kind, attributes
and shapes, and if the same of their inputs are parameters. A stretch of period p is a longest run
[a, b) with

    alike(i, i + p)    for all i in [a, b - p)

and contains (b - a) // p whole blocks of p operators. Of all stretches with at least two blocks,
`repeated_blocks` takes the one that covers most operators, and among equals the shortest period; it
then repeats this on the operators before and after the stretch. Blocks begin where the fewest bytes
cross, so that recomputing a block requires keeping little.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sbp.signature import find_rule
from .graph import SOURCE_KINDS, Graph, Op

Block = tuple[str, ...]
Blocks = tuple[Block, ...]
_ENDS = ("input", "param", "buffer", "stage_input", "stage_output", "loss")


def repeated_blocks(graph: Graph) -> tuple[Block, ...]:
    """The operator names of each repeated block, in graph order; () if there is none.

    Every block contains a matrix product. No block contains an opaque operator, which might keep
    state of its own.
    """
    return graph.once(_repeated_blocks)


def _repeated_blocks(graph: Graph) -> tuple[Block, ...]:
    ops = [op for op in graph.ops if op.kind not in _ENDS]
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(key, len(numbers)) for key in _keys(graph, ops)]
    crossing = crossing_bytes(graph, ops)
    found = _stretches(np.array(keys, dtype=np.int64), crossing, 0, len(ops))
    blocks = [tuple(op.name for op in ops[a:b]) for a, b in found if _is_worth_it(ops[a:b])]
    return tuple(blocks)


def _is_worth_it(ops: Sequence[Op]) -> bool:
    rules = (find_rule(op.kind) for op in ops if op.kind != "opaque")
    no_opaque = all(op.kind != "opaque" for op in ops)
    return no_opaque and any(rule is not None and rule.heavy for rule in rules)


def _keys(graph: Graph, ops: Sequence[Op]) -> list[Hashable]:
    keys: list[Hashable] = []
    for op in ops:
        held = [graph.producers[name].kind in ("param", "buffer") for name in op.inputs]
        keys.append((graph.alike[op.name], op.name if op.kind == "opaque" else "", *held))
    return keys


def crossing_bytes(graph: Graph, ops: Sequence[Op]) -> NDArray[np.int64]:
    """[n]: bytes computed before operator n that operator n or a later one reads."""
    position = {op.name: n for n, op in enumerate(ops)}
    change = np.zeros(len(ops) + 2, dtype=np.int64)
    for n, op in enumerate(ops):
        for name in op.outputs:
            readers = (position.get(user.name, n) for user, _ in graph.consumers[name])
            last = max(readers, default=n)
            change[n + 1] += graph.tensors[name].spec.bytes
            change[last + 1] -= graph.tensors[name].spec.bytes
    return change.cumsum()[: len(ops) + 1]


def _stretches(
    keys: NDArray[np.int64], crossing: NDArray[np.int64], start: int, stop: int
) -> list[tuple[int, int]]:
    """The blocks within [start, stop), as (first, last + 1)."""
    best: tuple[int, int, int] | None = None  # covered, -period, -first one that is alike
    for period in _periods(keys[start:stop]):
        alike = keys[start : stop - period] == keys[start + period : stop]
        many = int(np.count_nonzero(alike))
        if many < period or (best is not None and many + period < best[0]):
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
        lengths = edges[1::2] - edges[::2]
        for at in np.flatnonzero(lengths >= period):
            found = int(lengths[at] + period) // period * period, -period, -int(edges[2 * at])
            best = found if best is None else max(best, found)
    if best is None:
        return []
    covered, period, first = best[0], -best[1], start - best[2]
    alike = keys[first : stop - period] == keys[first + period : stop]
    after = np.append(np.flatnonzero(~alike), len(alike))[0] + period  # a whole stretch's length
    first += _first(crossing[first : first + after + 1], period, covered // period)
    blocks = [(n, n + period) for n in range(first, first + covered, period)]
    before = _stretches(keys, crossing, start, first)
    return before + blocks + _stretches(keys, crossing, first + covered, stop)


def _periods(keys: NDArray[np.int64]) -> list[int]:
    """The periods that may have a stretch, ascending.

    Of period p, which is w to 2 w, p ones in a row are alike: so is one of every w-th, wherever
    these begin. It is looked for at four beginnings, for all periods from w on at once: of 36,859
    periods of a PVT 1,379 are left, in a quarter of the time.
    """
    found: list[int] = []
    for width in (2**n for n in range(1, (len(keys) // 2).bit_length())):
        stays = np.ones(width, dtype=bool)
        for first in range(0, width, max(width // 4, 1)):
            own = keys[first:]
            rows = np.append(own, np.full(-len(own) % width, -1)).reshape(-1, width)
            stays &= (rows[1:] == rows[:-1, :1]).any(axis=0)
        found += [width + int(n) for n in np.flatnonzero(stays)]
    return [period for period in found if period <= len(keys) // 2]


def _first(crossing: NDArray[np.int64], period: int, count: int) -> int:
    """Where to begin the blocks of a stretch, so that `count` fit and the fewest bytes cross."""
    shifts = len(crossing) - 1 - period * count
    sums = [int(crossing[s : s + period * count : period].sum()) for s in range(shifts + 1)]
    return sums.index(min(sums))


@dataclass(frozen=True)
class AlikeBlock:
    """A repeated block and the sources that it alone reads.

    ops:   its operators' names, in the block's order
    own:   those of the sources
    key:   equal for blocks that do the same and read alike
    """

    ops: Block
    own: Block
    key: Hashable


def alike_blocks(graph: Graph) -> tuple[tuple[AlikeBlock, ...], ...]:
    """Runs of blocks that follow one another and are alike, where no others read what is inside.

    Inside is what all blocks of a run but the last one make: only the same block and the next one
    read it. Of each run there are two blocks at least.
    """
    return graph.once(_alike_blocks)


def _alike_blocks(graph: Graph) -> tuple[tuple[AlikeBlock, ...], ...]:
    order = {op.name: n for n, op in enumerate(o for o in graph.ops if o.kind not in SOURCE_KINDS)}
    keys = _Reads(graph, repeated_blocks(graph))
    runs: list[list[AlikeBlock]] = []
    for number, block in enumerate(keys.blocks):
        new = AlikeBlock(block, keys.own(number), keys.of(number))
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and last.key == new.key
            and order[last.ops[0]] + len(block) == order[block[0]]
            and keys.is_closed(number - 1)
        ):
            runs[-1].append(new)
        else:
            runs.append([new])
    return tuple(tuple(run) for run in runs if len(run) > 1)


class _Reads:
    """How the operators of blocks read."""

    def __init__(self, graph: Graph, blocks: Blocks):
        self.graph, self.blocks = graph, blocks
        self._ops = {op.name: op for op in graph.ops}
        # operator -> its block's number, and its place in it
        self._at = {name: (b, n) for b, block in enumerate(blocks) for n, name in enumerate(block)}

    def own(self, number: int) -> Block:
        """The sources that only this block reads, in the order in which it does."""
        read = (name for op in self.blocks[number] for name in self._ops[op].inputs)
        return tuple(
            self.graph.producers[name].name
            for name in dict.fromkeys(read)
            if self._is_own(name, number)
        )

    def _is_own(self, tensor: str, number: int) -> bool:
        producer = self.graph.producers[tensor]
        return producer.kind in SOURCE_KINDS and self._readers(producer) == {number}

    def _readers(self, op: Op) -> set[int]:
        """The numbers of the blocks in which an operator's outputs are read; -1 for outside."""
        users = (user for name in op.outputs for user, _ in self.graph.consumers[name])
        return {self._at.get(user.name, (-1, 0))[0] for user in users}

    def is_closed(self, number: int) -> bool:
        """Whether what a block makes is read in it and in the next one only, and not returned."""
        made = [self._ops[name] for name in self.blocks[number]]
        returned = {*self.graph.outputs, self.graph.loss}
        return all(
            self._readers(op) <= {number, number + 1} and returned.isdisjoint(op.outputs)
            for op in made
        )

    def of(self, number: int) -> Hashable:
        """What blocks have in common that do the same and read alike."""
        graph, places = self.graph, {name: n for n, name in enumerate(self.own(number))}
        key: list[Hashable] = []
        for op in map(self._ops.__getitem__, self.blocks[number]):
            reads: list[Hashable] = []
            for tensor in op.inputs:
                producer = graph.producers[tensor]
                block, place = self._at.get(producer.name, (number - 2, 0))
                if producer.name in places:
                    own = producer.kind, tensor in graph.needs_grad
                    reads.append(("own", places[producer.name], *own))
                elif number - block < 2:
                    reads.append((number - block, place, producer.outputs.index(tensor)))
                else:
                    reads.append(tensor)
            uses = [(len(graph.consumers[o]), o in graph.needs_grad) for o in op.outputs]
            key.append((graph.alike[op.name], *reads, *uses))
        return tuple(key)
