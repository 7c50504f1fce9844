"""The collectives: which change of labels each makes, what it moves, and by which algorithm.

`COLLECTIVES` is the one table of them; all that knows a collective by name, labels, bytes or rounds
reads it here. A collective changes the label `source` to `target` in groups along mesh axes. Of p
ranks on n nodes with g GPUs each, of the G on a node, and per byte of the larger of a device's
tensors before and after:

                     labels           messages    out of a device    out of a NIC (0 if n = 1)
    all_gather       S -> B           p-1         (p-1)/p            (G/g) (p-1)/p
    reduce_scatter   P -> S           p-1         (p-1)/p            (G/g) (p-1)/p
    all_reduce       P -> B           2 (p-1)     2 (p-1)/p          2 (G/g) (p-1)/p
    all_to_all       S -> S'          p-1         (p-1)/p            G (p-g)/p
    slice            B -> S           local
    to_partial       B -> P, S -> P   local: the first device keeps, or pads with zeros

Groups along the same axes run at once, so G/g of them cross each NIC. Unequal pieces, of a split
along an axis with shares, take more bytes (`sbp.work`), and there is a second way to gather and
to reduce them (`Collectives.balanced`). By default each change is done by a ring, or pairwise.
`Collectives.with_algorithm` gives a table with one more way, of other rounds or bytes; a path takes
whichever is cheaper. What is several steps along fewer axes needs no entry: recursive doubling, and
reducing inside the nodes first, are paths over the prime axes.

A path read backwards with Partial and Broadcast swapped is a path, so the backward pass of a
collective is its `inverse`: all-gather and reduce-scatter change places, as do slice and S -> P.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from .layout import TensorSpec, shard_bytes
from .mesh import Mesh
from .placement import B, NdSbp, P, Placement, S
from .work import EvenedRing, Pairwise, Ring, UnevenOf, Work, WorkOf, balanced, exchanged, filled_up

StepKind = str  # the name of a collective, with an algorithm in brackets if it is not the default
Label = Literal["S", "B", "P"]
_DUAL: dict[Label, Label] = {"S": "S", "B": "P", "P": "B"}


@dataclass(frozen=True)
class Collective:
    """One way of the changes of label that go by one name.

    work:       None if no device sends anything
    algorithm:  "" for the default
    divisible:  along several axes it is as well done by one for each axis: the same bytes in all,
                in no more rounds (n/4 + n/2 = 3n/4 for an all-gather over 2 x 2)
    uneven:     (mesh, axes) -> how many times the bytes it has on links where pieces are unequal;
                None if it moves no pieces of a split
    """

    name: str
    changes: tuple[tuple[Label, Label], ...]
    work: WorkOf | None = None
    algorithm: str = ""
    divisible: bool = False
    uneven: UnevenOf | None = None

    @property
    def way(self) -> StepKind:
        """Its name, with the algorithm if that is not the default: `all_reduce[tree]`."""
        return f"{self.name}[{self.algorithm}]" if self.algorithm else self.name

    @property
    def is_local(self) -> bool:
        return self.work is None

    def bytes_along(self, mesh: Mesh, axes: tuple[int, ...]) -> tuple[float, float]:
        """Through a NIC and out of a device, per byte that it would be if all pieces were equal."""
        return self.uneven(mesh, axes) if self.uneven and mesh.shares else (1.0, 1.0)

    @property
    def divides(self) -> bool:
        """Whether a split begins by it: each device is left with a piece of what it had."""
        return any(target == "S" != source for source, target in self.changes)

    @property
    def joins(self) -> bool:
        """Whether a split ends by it: each device has more than its piece afterwards."""
        return any(source == "S" != target for source, target in self.changes)

    @property
    def moves_split(self) -> bool:
        """Whether it takes a split from one dim to another."""
        return ("S", "S") in self.changes

    @property
    def pads(self) -> bool:
        """Whether summands begin by it."""
        return any(target == "P" for _, target in self.changes)

    @property
    def inverse(self) -> tuple[tuple[Label, Label], ...]:
        """The changes that the backward pass makes."""
        return tuple((_DUAL[target], _DUAL[source]) for source, target in self.changes)

    @property
    def example(self) -> tuple[Placement, Placement]:
        """Two placements that it changes one into the other."""
        source, target = self.changes[0]
        labels = {"S": S(0), "B": B, "P": P}
        return labels[source], S(1) if self.moves_split else labels[target]


@dataclass(frozen=True)
class Collectives:
    """A table of collectives. Arrays know an entry by its place; the defaults come first."""

    entries: tuple[Collective, ...]

    MOST = 15  # entries; arrays take this number for no step at all

    def __post_init__(self) -> None:
        ways = [entry.way for entry in self.entries]
        assert len(set(ways)) == len(ways) <= self.MOST, ways

    def with_algorithm(
        self, name: str, algorithm: str, work: WorkOf, uneven: UnevenOf | None = None
    ) -> Collectives:
        """This table with a second algorithm of the collective `name`.

        work: what it takes, from (nodes, gpus, groups that share a NIC); it must be hashable
        uneven: as in `Collective`, by default the collective's own
        The runtime must know how to do it as well (`Groups.ways`). ValueError if `name` is not a
        collective that sends, or if it has the algorithm.
        """
        default = next((e for e in self.entries if e.way == name and not e.is_local), None)
        if default is None:
            known = ", ".join(e.name for e in self.sending if not e.algorithm)
            raise ValueError(f"{name!r} is no collective that sends; those are {known}")
        if not re.fullmatch(r"[a-z]\w*", algorithm):
            raise ValueError(f"an algorithm's name is a word of small letters, not {algorithm!r}")
        if f"{name}[{algorithm}]" in self._by_way:
            raise ValueError(f"{name} has an algorithm {algorithm!r} already")
        if len(self.entries) == self.MOST:
            raise ValueError(f"a table has at most {self.MOST} entries")
        own = {"work": work, "uneven": uneven or default.uneven}
        added = replace(default, algorithm=algorithm, divisible=False, **own)
        return Collectives((*self.entries, added))

    @property
    def balanced(self) -> Collectives:
        """This table with what is worth a choice where pieces are unequal (`sbp.work`)."""
        if "all_gather[balanced]" in self._by_way:
            return self
        found = self
        for name, passes in (("all_gather", 2.0), ("reduce_scatter", 3.0)):
            found = found.with_algorithm(name, "balanced", EvenedRing(1, passes), balanced)
        return found

    @property
    def even(self) -> Collectives:
        """This table without what `balanced` adds."""
        kept = tuple(entry for entry in self.entries if entry.algorithm != "balanced")
        return self if kept == self.entries else Collectives(kept)

    @cached_property
    def _by_way(self) -> dict[StepKind, Collective]:
        return {entry.way: entry for entry in self.entries}

    def __getitem__(self, way: StepKind) -> Collective:
        entry = self._by_way.get(way)
        if entry is None:
            known = ", ".join(self._by_way)
            raise ValueError(f"{way!r} is not in the table of collectives, which has {known}")
        return entry

    @cached_property
    def sending(self) -> tuple[Collective, ...]:
        """Those that send anything."""
        return tuple(entry for entry in self.entries if not entry.is_local)

    @cached_property
    def _of_change(self) -> dict[tuple[Label, Label], tuple[int, ...]]:
        found: dict[tuple[Label, Label], tuple[int, ...]] = {}
        for number, entry in enumerate(self.entries):
            for change in entry.changes:
                found[change] = (*found.get(change, ()), number)
        return found

    def of_change(self, source: Placement, target: Placement) -> tuple[int, ...]:
        """The places of the ways from one label to another, the default first."""
        assert source != target, f"no step turns {source} into itself"
        return self._of_change[_label(source), _label(target)]

    def steps(self, source: Placement, target: Placement, axes: tuple[int, ...]) -> list[Step]:
        """The ways from one label to another along `axes`, the default first."""
        entries = [self.entries[way] for way in self.of_change(source, target)]
        return [Step(entry.name, axes, source, target, entry.algorithm) for entry in entries]

    @property
    def has_choices(self) -> bool:
        """Whether any change has several ways."""
        return any(entry.algorithm for entry in self.entries)

    @cached_property
    def index(self) -> dict[StepKind, int]:
        """The place of each way."""
        return {entry.way: number for number, entry in enumerate(self.entries)}

    @cached_property
    def defaults(self) -> tuple[int, ...]:
        """Of each entry, the place of the default of its name."""
        return tuple(self.index[entry.name] for entry in self.entries)

    @cached_property
    def inverses(self) -> tuple[tuple[int, ...], ...]:
        """Of each entry that sends, the places of those that its backward pass may take."""
        return tuple(
            () if entry.is_local else self._of_change[entry.inverse[0]] for entry in self.entries
        )

    def where(self, holds: Callable[[Collective], bool]) -> tuple[int, ...]:
        """The places of some entries."""
        return tuple(number for number, entry in enumerate(self.entries) if holds(entry))


COLLECTIVES = Collectives(
    (
        Collective(
            "all_gather", (("S", "B"),), Ring(1, passes=1.0), divisible=True, uneven=filled_up
        ),
        Collective(
            "reduce_scatter", (("P", "S"),), Ring(1, passes=2.0), divisible=True, uneven=filled_up
        ),
        Collective("all_reduce", (("P", "B"),), Ring(2, passes=2.0)),
        Collective("all_to_all", (("S", "S"),), Pairwise(passes=3.0), uneven=exchanged),
        Collective("slice", (("B", "S"),), divisible=True),
        Collective("to_partial", (("B", "P"), ("S", "P")), divisible=True),
    )
)


def _label(placement: Placement) -> Label:
    return "S" if placement.is_split else "B" if placement.is_broadcast else "P"


def step_kind(source: Placement, target: Placement) -> StepKind:
    """The name of the collective that turns `source` into `target`, two different placements."""
    return COLLECTIVES.entries[COLLECTIVES.of_change(source, target)[0]].name


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or one free local step, in the groups along `axes`.

    The axes act as one group in row-major order and carry `source` before and `target` after it. A
    split of one dim over several axes is nested, the earlier axis outermost, so a step is one
    collective only if (`is_legal`)

    - the axes that lose S(d) are the last (minor-most) of those that split d, and
    - the axes that gain S(d) come after all other axes that split d.

    Both say: no axis outside the step that comes after its first axis splits d. Then each group
    holds, in rank order, the consecutive pieces of one range of d, even or uneven (balanced).
    """

    kind: str
    axes: tuple[int, ...]
    source: Placement
    target: Placement
    algorithm: str = ""
    _hash: int = field(init=False, repr=False, compare=False)  # paths are often looked up

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.axes, self.source, self.target)))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def between(source: Placement, target: Placement, axes: tuple[int, ...]) -> Step:
        """The default way from `source` to `target`."""
        return Step(step_kind(source, target), axes, source, target)

    @staticmethod
    def parse(text: str) -> Step:
        """The inverse of `str`, e.g. `all_gather[0,1] S0->B` or `all_reduce[tree][0] P->B`.

        ValueError on anything else.
        """
        match = re.fullmatch(
            r"\s*(\w+?)(?:\[([a-z]\w*)\])?\[(\d+(?:,\d+)*)\] (\w+)->(\w+)\s*", text
        )
        if match is None:
            raise ValueError(f"{text!r} is not a step; expected e.g. 'all_gather[0,1] S0->B'")
        kind, algorithm, axes, source, target = match.groups()
        placements = Placement.parse(source), Placement.parse(target)
        if placements[0] == placements[1] or kind != step_kind(*placements):
            raise ValueError(f"{text!r} is not a step: {kind} does not turn {source} into {target}")
        numbers = tuple(map(int, axes.split(",")))
        return Step(step_kind(*placements), numbers, *placements, algorithm or "")

    @property
    def way(self) -> StepKind:
        """As `Collective.way`: what prices and runtimes know the step by."""
        return f"{self.kind}[{self.algorithm}]" if self.algorithm else self.kind

    @property
    def is_free(self) -> bool:
        """True if no device sends anything."""
        return COLLECTIVES[self.kind].is_local

    def apply(self, nd: NdSbp) -> NdSbp:
        """The placement after the step."""
        assert all(nd[a] == self.source for a in self.axes), f"{self} does not start at {nd}"
        return nd.replace(self.axes, self.target)

    def __str__(self) -> str:
        return f"{self.way}[{','.join(map(str, self.axes))}] {self.source}->{self.target}"

    __repr__ = __str__


def is_legal(step: Step, nd: NdSbp) -> bool:
    """True if `step` is one collective (or local) when the tensor is placed as `nd`."""
    if not step.axes or step.axes != tuple(sorted(set(step.axes))) or step.source == step.target:
        return False
    if step.kind != step_kind(step.source, step.target):
        return False
    if any(a >= len(nd) or nd[a] != step.source for a in step.axes):
        return False
    later = [nd[a] for a in range(step.axes[0] + 1, len(nd)) if a not in step.axes]
    return not any(p.is_split and p in (step.source, step.target) for p in later)


def legal_steps(nd: NdSbp, ndim: int, collectives: Collectives = COLLECTIVES) -> Iterator[Step]:
    """All legal steps from `nd` for a tensor of `ndim` dims: the definition, one by one."""
    labels = (P, B, *map(S, range(ndim)))
    for size in range(1, len(nd) + 1):
        for axes in itertools.combinations(range(len(nd)), size):
            source = nd[axes[0]]
            for target in labels:
                if target != source:
                    steps = collectives.steps(source, target, axes)
                    yield from (step for step in steps if is_legal(step, nd))


def placed_after(nd: NdSbp, steps: Sequence[Step]) -> NdSbp:
    """The placement `nd` after `steps`."""
    for step in steps:
        nd = step.apply(nd)
    return nd


Steps = Sequence[Step]

# ---- what steps move: exact for even shards, of uneven ones what the busiest device moves


def path_bytes(
    spec: TensorSpec, steps: Sequence[Step], source: NdSbp, mesh: Mesh
) -> list[tuple[Step, int, int]]:
    """Each step with the bytes of the largest shard before and after it."""
    counted: list[tuple[Step, int, int]] = []
    nd, before = source, shard_bytes(spec, source, mesh)
    for step in steps:
        nd = step.apply(nd)
        after = shard_bytes(spec, nd, mesh)
        counted.append((step, before, after))
        before = after
    return counted


def work_of(step: Step, mesh: Mesh, table: Collectives = COLLECTIVES) -> Work:
    """The work of a step in all groups along its axes at once; nothing if it is local."""
    work = table[step.way].work
    if work is None:
        return Work(0, 0.0, 0.0)
    nodes, gpus = mesh.topology(step.axes)
    done = work(nodes, gpus, mesh.gpus_per_node / gpus)
    return done.times(*table[step.way].bytes_along(mesh, step.axes))


def nic_bytes(
    spec: TensorSpec, source: NdSbp, steps: Steps, mesh: Mesh, table: Collectives = COLLECTIVES
) -> float:
    """Bytes that one node sends through its NIC (and receives) while `steps` run."""
    counted = path_bytes(spec, steps, source, mesh)
    return sum((work_of(s, mesh, table).nic * max(b, a) for s, b, a in counted), 0.0)


def nic_messages(steps: Steps, mesh: Mesh, table: Collectives = COLLECTIVES) -> float:
    """Messages that one node sends through its NIC while `steps` run: one a hop that leaves it."""
    return sum((work_of(step, mesh, table).nic_messages for step in steps), 0.0)


def device_bytes(
    spec: TensorSpec, source: NdSbp, steps: Steps, mesh: Mesh, table: Collectives = COLLECTIVES
) -> float:
    """Bytes that one device receives (and sends) while `steps` run, over whatever link."""
    counted = path_bytes(spec, steps, source, mesh)
    return sum((work_of(s, mesh, table).device * max(b, a) for s, b, a in counted), 0.0)


def device_intra_bytes(
    spec: TensorSpec, source: NdSbp, steps: Steps, mesh: Mesh, table: Collectives = COLLECTIVES
) -> float:
    """Bytes that one device sends (and receives) in groups that lie inside a node."""
    total, nd = 0.0, source
    for step in steps:
        if mesh.topology(step.axes)[0] == 1:
            total += device_bytes(spec, nd, (step,), mesh, table)
        nd = step.apply(nd)
    return total
