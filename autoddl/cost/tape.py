"""A step as a tape: what each action reads and makes, in order, and so how long each tensor lives.

    sweep:   alive(t) = sum of the tensors with  made <= t <= last read;  peak = max over t
             in turns of several micro-batches, of all their tapes (`held_in_turns`)

A name stands for a place in memory: a view shares its source's, and an operator that may overwrite
an input takes over the place of one that nobody reads later. Places are rounded up to whole units
of `ALIGNMENT_BYTES`, as CUDA allocators and OneFlow do. `Tape.sweep` gives the peak.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Lifetime = tuple[int, int, int]  # bytes, first and last moment
Transfer = Literal["", "planned", "implied", "added"]
ALIGNMENT_BYTES = 512  # what OneFlow 0.9.0 and CUDA allocators round sizes up to
LARGEST = 12  # tensors that a peak names, for people to read: chosen, not measured


def aligned(size: float) -> int:
    """`size` bytes in whole units; an empty tensor takes none."""
    return math.ceil(size / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(slots=True)
class Action:
    """A computation or a collective. `workspace` bytes are there only while it runs.

    makes:       names with their bytes and cause
    over:        name made -> name read in whose place it may be written
    transfer:    a redistribution: "planned", or "implied" by what its reader needs; "added" for an
                 addition to what other micro-batches gave; "" for others
    """

    name: str
    reads: tuple[str, ...]
    makes: list[tuple[str, int, str]] = field(default_factory=list)
    workspace: int = 0
    over: dict[str, str] = field(default_factory=dict)
    transfer: Transfer = ""

    @property
    def travels(self) -> bool:
        """Whether it is a redistribution, which travels beside what is computed."""
        return self.transfer in ("planned", "implied")


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a step.

    moment:   the action that runs then
    by_cause: bytes by cause, `always` included
    always:   bytes by cause of what is there all the time
    largest:  the largest tensors alive then besides these: (bytes, cause, the action that made it)
    """

    bytes: int
    moment: str
    by_cause: Mapping[str, int]
    always: Mapping[str, int]
    largest: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """What is held while the action `name` runs, of the backward pass or before it."""

    name: str
    is_backward: bool
    by_cause: Mapping[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.by_cause.values())


@dataclass(frozen=True)
class Strand:
    """The tape of one of several micro-batches that take turns, without what is always there.

    held:      bytes at each action, its workspace included
    workspace: bytes of that
    travels:   whether each action is a redistribution, for which there is a queue of its own
    done:      actions until each position (`plans.schedule.orders`)
    """

    held: Sequence[int]
    workspace: Sequence[int]
    travels: Sequence[bool]
    done: Sequence[int]


def strand_of(tape: Tape, counts: Sequence[int], runs: Sequence[bool]) -> Strand:
    """What turns of several micro-batches are made of.

    counts: actions so far after each operator's forward pass, and then, in reverse order, after
            each one's backward pass; runs: of each operator, whether it is more than a source
    """
    done = [0]
    for count, does in zip(counts, runs, strict=False):
        done += [max(done[-1], count - 1), count] if does else []
    for count, does in zip(counts[len(runs) :], reversed(runs), strict=True):
        done += [count] * 2 if does else []
    workspace, travels = zip(*((a.workspace, a.travels) for a in tape.actions), strict=True)
    return Strand(tape.held(), list(workspace), list(travels), done)


def held_in_turns(strands: Sequence[Strand], turns: Sequence[tuple[int, int]]) -> int:
    """Bytes that all strands together hold at most, in these turns.

    While an action of one runs, another holds what it does at its own last action, but the
    workspace of that only until its queue goes on to an action of the first: a queue carries
    redistributions one after the other, and one computes.
    """
    at, most = [0] * len(strands), 0
    user: dict[bool, int] = {}  # queue -> the strand that has it
    for number, to in turns:
        strand = strands[number]
        others, meanwhile = 0, []
        for other, (own, position) in enumerate(zip(strands, at, strict=True)):
            if other != number and own.done[position]:
                last = own.done[position] - 1
                others += own.held[last] - own.workspace[last]
                meanwhile.append((other, own.travels[last], own.workspace[last]))
        for action in range(strand.done[at[number]], strand.done[to]):
            user[strand.travels[action]] = number
            beside = sum(size for other, queue, size in meanwhile if user[queue] == other)
            most = max(most, strand.held[action] + others + beside)
        at[number] = to
    return most


@dataclass
class Tape:
    """Actions in order; `always` counts bytes that live through the step, by cause.

    turn: the first action of the backward pass
    """

    actions: list[Action] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)  # name -> the root whose place it shares
    kept: set[str] = field(default_factory=set)  # names that live until the end
    always: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    turn: int = 0

    def act(
        self,
        name: str,
        reads: Sequence[str],
        makes: Sequence[tuple[str, float, str]] = (),
        workspace: float = 0,
        over: Mapping[str, str] | None = None,
        transfer: Transfer = "",
    ) -> None:
        """Append an action; sizes are rounded up."""
        pieces = [(key, aligned(size), cause) for key, size, cause in makes]
        size = aligned(workspace) if workspace else 0
        places = dict(over) if over else {}
        self.actions.append(Action(name, tuple(reads), pieces, size, places, transfer))

    def view(self, name: str, source: str) -> None:
        """Let `name` share the place of `source`."""
        self.views[name] = self.root(source)

    def keep(self, cause: str, size: float) -> None:
        """Count `size` bytes that are there all the time."""
        self.always[cause] += aligned(size)

    def root(self, name: str) -> str:
        """The name that `name` is a view of."""
        return self.views.get(name, name)

    def sweep(self, packed_bytes: Callable[[Sequence[Lifetime]], int] | None = None) -> Peak:
        """The peak of the step.

        packed_bytes: what all places take if each has a fixed offset; what is lost to that counts
        """
        size, cause, made_at = self._sizes()
        own, death = self._lives(size, made_at)
        best, best_at = -1, -1
        for number, total in enumerate(self._held(size, own, death)):
            if total > best:
                best, best_at = total, number
        snapshot = [key for key, number in own.items() if number <= best_at <= death[key]]
        by_cause: dict[str, int] = defaultdict(int, self.always)
        for key in snapshot:
            by_cause[cause[key]] += size[key]
        if best_at >= 0 and self.actions[best_at].workspace:
            by_cause["workspace"] += self.actions[best_at].workspace
        if packed_bytes is not None:
            lost = packed_bytes(self._lifetimes(size, made_at, death)) - max(best, 0)
            best += lost
            by_cause["fragmentation"] += lost
        largest = sorted(snapshot, key=lambda key: (-size[key], made_at[key]))[:LARGEST]
        return Peak(
            max(best, 0) + sum(self.always.values()),
            self.actions[best_at].name if best_at >= 0 else "",
            dict(by_cause),
            dict(self.always),
            tuple((size[k], cause[k], self.actions[made_at[k]].name) for k in largest),
        )

    def held(self) -> list[int]:
        """Bytes at each action, without what is there all the time."""
        size, _, made_at = self._sizes()
        return self._held(size, *self._lives(size, made_at))

    def _held(
        self, size: Mapping[str, int], own: Mapping[str, int], death: Mapping[str, int]
    ) -> list[int]:
        change = [0] * (len(self.actions) + 2)
        for key, number in own.items():
            change[number] += size[key]
            change[death[key] + 1] -= size[key]
        totals = itertools.accumulate(change[: len(self.actions)])
        return [total + a.workspace for total, a in zip(totals, self.actions, strict=True)]

    def changes(self) -> dict[str, list[int]]:
        """By cause, bytes more at each action than at the one before, without workspaces."""
        size, cause, made_at = self._sizes()
        own, death = self._lives(size, made_at)
        found: dict[str, list[int]] = defaultdict(lambda: [0] * (len(self.actions) + 2))
        for key, number in own.items():
            change = found[cause[key]]
            change[number] += size[key]
            change[death[key] + 1] -= size[key]
        return {why: change[: len(self.actions)] for why, change in found.items()}

    def course(self) -> list[Moment]:
        """What is held at each action, in order: the fullest is the peak of `sweep`."""
        held = {why: [*itertools.accumulate(more)] for why, more in self.changes().items()}
        moments: list[Moment] = []
        for number, action in enumerate(self.actions):
            now = Counter(self.always)
            now.update({why: totals[number] for why, totals in held.items()})
            now["workspace"] += action.workspace
            told = {why: count for why, count in now.items() if count}
            moments.append(Moment(action.name, number >= self.turn, told))
        return moments

    def _lives(
        self, size: Mapping[str, int], made_at: Mapping[str, int]
    ) -> tuple[Mapping[str, int], dict[str, int]]:
        """The action that makes each place, and the last one that needs it."""
        last = self.last_reads()
        if any(action.over for action in self.actions):
            place, death = self._places(last, size)
            return {key: number for key, number in made_at.items() if place[key] == key}, death
        # every tensor has a place of its own: quicker, as the planner sweeps many tapes
        return made_at, {key: last[key] for key in made_at}

    def _lifetimes(
        self, size: Mapping[str, int], made_at: Mapping[str, int], death: Mapping[str, int]
    ) -> list[Lifetime]:
        places = [(size[key], made_at[key], last) for key, last in death.items()]
        return places + [(a.workspace, n, n) for n, a in enumerate(self.actions)]

    def _sizes(self) -> tuple[dict[str, int], dict[str, str], dict[str, int]]:
        size: dict[str, int] = {}
        cause: dict[str, str] = {}
        made_at: dict[str, int] = {}
        for number, action in enumerate(self.actions):
            for key, count, why in action.makes:
                assert key not in size, f"{action.name} makes {key} a second time"
                size[key], cause[key], made_at[key] = count, why, number
        return size, cause, made_at

    def bytes_across(self, actions: range) -> int:
        """Bytes of what these actions of the forward pass have made and the backward pass reads.

        Each in a place of its own.
        """
        last, (size, _, made_at) = self.last_reads(), self._sizes()
        keys = (key for key, number in made_at.items() if number in actions)
        return sum(size[key] for key in keys if last[key] >= self.turn)

    def last_reads(self) -> dict[str, int]:
        """Root name -> the last action that reads it or a view of it (or makes it)."""
        last: dict[str, int] = {}
        views = self.views
        for number, action in enumerate(self.actions):
            for key in action.reads:
                last[views.get(key, key)] = number
            for key, _, _ in action.makes:
                last[views.get(key, key)] = number
        for key in self.kept:
            last[self.root(key)] = len(self.actions)
        return last

    def _places(
        self, last: Mapping[str, int], size: Mapping[str, int]
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Name -> the name whose place it has; that name -> the action after which it is free."""
        place: dict[str, str] = {}
        death: dict[str, int] = {}
        for number, action in enumerate(self.actions):
            for key, count, _ in action.makes:
                place[key] = key
                source = self.root(action.over.get(key, ""))
                owner = place.get(source)
                if owner is not None and death[owner] <= number and size[owner] == count:
                    place[key] = owner
                death[place[key]] = max(death.get(place[key], -1), last[key])
        return place, death
