"""From what all ranks of a job do: whether it is lost, and which rank is the first cause.

Needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

START_SECONDS = 60.0  # at least, for a rank to come: hosts may be slow to import the framework


@dataclass(frozen=True)
class Rank:
    """What a rank does: its journal's `Done`, its place, and what the kernel knows.

    state:   of its main thread, as in proc(5): "S" sleeps, "T" is stopped
    ticks:   CPU time of its main thread
    is_dead: it has ended
    """

    rank: int
    host: str
    state: str
    ticks: int
    is_dead: bool
    calls: int
    inside: int
    collectives: int
    ended: bool
    patience_s: float
    call: str
    collective: str
    reason: str

    @property
    def progress(self) -> tuple[int, int, int]:
        """Changes while the rank goes on."""
        return self.calls, self.collectives, self.ticks

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
) -> Cause | None:
    """The first cause, if the job is lost.

    ranks:     those that have come, and first those that ended first
    silent_s:  how long nothing has been heard of each
    idle_s:    how long each has not gone on: no call, no collective, no CPU time
    running_s: how long rank 0 has been there
    limit_s:   without progress; a step may take ten times what the plan predicts
    """

    def say(rank: int, what: str) -> Cause:
        host = f" on {ranks[rank].host}" if rank in ranks else ""
        return Cause(rank, f"rank {rank} of {size}{host} {what}")

    for number, one in ranks.items():
        if one.is_dead and not one.ended:
            if one.reason:
                return Cause(number, "")
            return say(number, f"ended without a word {one.where} and ends the job")
    hint = "and ends the job (AUTODDL_TIMEOUT sets another limit, 0 none)"
    for number in range(size):
        if number not in ranks and running_s > (start_s := max(limit_s, START_SECONDS)):
            return say(number, f"has not come within {start_s:.0f} s {hint}")
        if number in ranks and silent_s[number] > limit_s and not ranks[number].ended:
            return say(
                number, f"has not answered for {limit_s:.0f} s, its host or a link is down, {hint}"
            )
    going = [one for one in ranks.values() if not one.ended]
    if len(ranks) < size or not going:
        return None
    patience_s = max(limit_s, *(one.patience_s for one in going))
    first = min(going, key=lambda one: (one.calls, one.collectives, one.rank))
    for one in going:
        if one.state in "Tt" and idle_s[one.rank] > limit_s:
            return say(one.rank, f"is stopped {one.where} {_waiting(one, going)}{hint}")
    ahead = max(one.calls for one in ranks.values())
    if idle_s[first.rank] > patience_s and (first.inside or first.calls < ahead):
        return say(
            first.rank,
            f"has done nothing for {patience_s:.0f} s {first.where} {_waiting(first, going)}{hint}",
        )
    return None


def _waiting(cause: Rank, going: list[Rank]) -> str:
    """Who waits for it, and where."""
    others = [one for one in going if one.rank != cause.rank]
    if not others:
        return ""
    last = max(others, key=lambda one: (one.calls, one.collectives))
    return f"while rank {last.rank} waits {last.where}, "
