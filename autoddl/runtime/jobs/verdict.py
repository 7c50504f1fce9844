"""From what all ranks of a job do: whether it is lost, and which rank is the first cause.

Needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .links import Peers, Stuck

TOGETHER_SECONDS = 3.0  # what one link takes with it falls silent within so long
_HINT = "and ends the job (AUTODDL_TIMEOUT sets another limit, 0 none)"
START_SECONDS = 60.0  # at least, for a rank to come: hosts may be slow to import the framework


@dataclass(frozen=True)
class Rank:
    """What a rank does: its journal's `Done`, its place, and what the kernel knows.

    address: of its host, for the others
    peers:   its connections to other hosts (`links.py`)
    state:   of its main thread, as in proc(5): "S" sleeps, "T" is stopped
    ticks:   CPU time of its main thread
    is_dead: it has ended
    has_loaded: OneFlow, whose import waits for all ranks
    is_told: before it ended, its launcher had told its processes to end
    """

    rank: int
    host: str
    address: str
    peers: Peers
    state: str
    ticks: int
    is_dead: bool
    has_loaded: bool
    calls: int
    inside: int
    collectives: int
    ended: bool
    patience_s: float
    link_bytes_per_s: float
    is_guarded: bool
    call: str
    collective: str
    reason: str
    is_told: bool = False

    @property
    def place(self) -> str:
        """Its host, with the address where hosts may have one name."""
        return self.host if self.address.startswith("127.") else f"{self.host} ({self.address})"

    @property
    def is_over(self) -> bool:
        """Nothing is wrong with its end. The launcher knows more of one that was not guarded."""
        return self.ended or (self.is_dead and not self.is_guarded)

    @property
    def has_met(self) -> bool:
        """A call that all ranks make together has returned."""
        return self.calls > self.inside

    @property
    def progress(self) -> tuple[int, int, int]:
        """Changes while the rank goes on."""
        return self.calls, self.collectives, self.ticks

    @property
    def how_far(self) -> tuple[int, int, int]:
        """Smaller for a rank that is behind.

        Calls that have returned come first: a rank that waits in its own code, for the loss of its
        last step, may have asked for fewer collectives than one that is still inside of the step.
        """
        return self.calls - self.inside, self.calls, self.collectives

    @property
    def where(self) -> str:
        """Where it is, for people."""
        if not self.calls:
            return "before parallelize"
        last = f", after it asked for {self.collective}" if self.collective else ""
        return f"in {self.call}{last}" if self.inside else f"in its own code after {self.call}"


@dataclass(frozen=True)
class Cause:
    """Why the job is lost; `text` is empty if the rank has said it itself."""

    rank: int
    text: str


def judge(
    ranks: Mapping[int, Rank],
    silent_s: Mapping[int, float],
    idle_s: Mapping[int, float],
    running_s: float,
    size: int,
    limit_s: float,
    stuck: Stuck | None = None,
) -> Cause | None:
    """The first cause, if the job is lost.

    ranks:     those that have come, and first those that ended first
    silent_s:  how long nothing has been heard of each
    idle_s:    how long each has not gone on: no call, no collective, no CPU time
    running_s: how long rank 0 has been there
    limit_s:   without progress; a step may take ten times what the plan predicts
    stuck:     the connection that has carried nothing for longest
    """

    def say(rank: int, what: str) -> Cause:
        host = f" on {ranks[rank].place}" if rank in ranks else ""
        return Cause(rank, f"rank {rank} of {size}{host} {what}")

    for number, one in ranks.items():
        if one.is_dead and not one.is_over:
            if one.reason:
                return Cause(number, "")
            return say(number, f"ended without a word {one.where} and ends the job")
    start_s = max(limit_s, START_SECONDS)
    has_met = any(one.has_met for one in ranks.values())  # a rank unheard of is not watched
    for number in range(size):
        if number not in ranks and running_s > start_s and not has_met:
            return say(number, f"has not come within {start_s:.0f} s {_HINT}")
        if number in ranks and silent_s[number] > limit_s and not ranks[number].is_over:
            mute = [n for n in ranks if silent_s[n] > limit_s - TOGETHER_SECONDS]
            return say(*_unheard(number, mute, ranks, limit_s))
    if (absent := _absent(ranks, idle_s, start_s)) is not None:
        return say(*absent)
    going = [one for one in ranks.values() if not one.is_over]
    if len(ranks) < size or not going:
        return None
    # what ranks do that are not heard is not known; if they stay so, that is the cause
    if any(silent_s[one.rank] > TOGETHER_SECONDS for one in going):
        return None
    if (found := _stalled(ranks, going, idle_s, limit_s, stuck)) is not None:
        return say(*found)
    return None


def _stalled(
    ranks: Mapping[int, Rank],
    going: list[Rank],
    idle_s: Mapping[int, float],
    limit_s: float,
    stuck: Stuck | None,
) -> tuple[int, str] | None:
    """Of ranks that all have come and can be heard, one that does not go on, and what to say."""
    first = min(going, key=lambda one: (*one.how_far, one.rank))
    patience_s = max(limit_s, *(one.patience_s for one in going))
    if not first.is_guarded:
        patience_s = max(patience_s, START_SECONDS)
    for one in going:
        if one.state in "Tt" and idle_s[one.rank] > limit_s:
            return one.rank, f"is stopped {one.where} {_waiting(one, going)}{_HINT}"
    ahead = max(one.calls for one in ranks.values())
    if idle_s[first.rank] > patience_s and (first.inside or first.calls < ahead):
        if stuck and stuck.seconds > patience_s / 2 and stuck.rank in ranks:
            other = next((n for n in ranks if ranks[n].address == stuck.there), None)
            peer = stuck.there if other is None else f"rank {other} on {ranks[other].place}"
            return stuck.rank, (
                f"has had no answer from {peer} for {stuck.seconds:.0f} s "
                f"{ranks[stuck.rank].where}: the link between them is down, {_HINT}"
            )
        return first.rank, (
            f"has done nothing for {patience_s:.0f} s {first.where} {_waiting(first, going)}{_HINT}"
        )
    return None


def _absent(
    ranks: Mapping[int, Rank], idle_s: Mapping[int, float], start_s: float
) -> tuple[int, str] | None:
    """A rank that others wait for before it has come, and what to say of it."""
    in_calls = [one for one in ranks.values() if one.calls and not one.is_over]
    idle = [one for one in ranks.values() if not one.calls and idle_s[one.rank] > start_s]
    in_import = [one for one in idle if one.has_loaded and not one.is_dead]
    for one in ranks.values():
        if one.is_dead and not one.is_guarded and in_calls:
            waits = f"while rank {in_calls[0].rank} waits {in_calls[0].where}"
            return one.rank, f"ended without a word before it had come, {waits}, {_HINT}"
    for one in idle:
        if in_import and not one.ended and (one.is_dead or not one.has_loaded):
            waits = f"while rank {in_import[0].rank} waits for it in OneFlow's import"
            return one.rank, f"has not come within {start_s:.0f} s, {waits}, {_HINT}"
    return None


def _unheard(
    number: int, mute: Collection[int], ranks: Mapping[int, Rank], limit_s: float
) -> tuple[int, str]:
    """Which rank to name, and what to say of it, if nothing has come from some for so long."""
    if 0 not in ranks:
        return number, f"has not answered for {limit_s:.0f} s {_HINT}"
    here, for_s = ranks[0], f"for {limit_s:.0f} s"
    others = {one.address for one in ranks.values()} - {here.address}
    unheard = sorted({ranks[n].address for n in mute} - {here.address})
    if len(unheard) > 1 and len(unheard) == len(others):
        return 0, f"has heard nothing from any other host {for_s}: its host's link is down, {_HINT}"
    if len(unheard) > 1:
        return number, (
            f"has not answered {for_s}, nor have the other ranks on {', '.join(unheard)}: the "
            f"links between them and {here.place} are down, {_HINT}"
        )
    return number, (
        f"has not answered {for_s}: its host or the link between it and {here.place} is down, "
        f"{_HINT}"
    )


def _waiting(cause: Rank, going: list[Rank]) -> str:
    """Who waits for it, and where."""
    others = [one for one in going if one.rank != cause.rank]
    if not others:
        return ""
    last = max(others, key=lambda one: (one.calls, one.collectives))
    return f"while rank {last.rank} waits {last.where}, "
