"""Chains: the actions that OneFlow's compiler orders strictly, and so lets share memory.

Actions are in one chain if tensors connect them. A change that leaves the chain connects nothing:
what it reads stays until the end of its chain, what it makes is a buffer of its own. Without
micro-batches all chains share one block of memory. With them each chain has its own, and there are
two ways to chain (OneFlow's ENABLE_LOGICAL_CHAIN):

    "operators"  a collective on a mesh that is reduced to fewer axes leaves the chain, as do
                 changes through the host. A gradient is free when it has been added up. What
                 follows the last micro-batch shares the block of the chain that starts last, whose
                 first result is there all the time
    "apart"      the same where nothing that follows holds memory: OneFlow cannot let that share
    "tasks"      only changes through the host leave the chain. Gradients stay until its end. What
                 follows the last micro-batch has a block of its own
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from .....cost.tape import Peak, Tape
from .order import compiled_order
from .packing import packed_bytes

ChainRule = Literal["operators", "apart", "tasks"]


def compiled_peak(tape: Tape, late: Tape, micro_batches: int, rule: ChainRule) -> Peak:
    """The memory of a compiled step; `late` is what follows the last micro-batch."""
    ordered = compiled_order(tape)
    always: dict[str, int] = defaultdict(int, tape.always)
    for cause, size in late.always.items():
        always[cause] += size
    parts = split(ordered) if micro_batches > 1 else [Tape(ordered.actions, tape.views, tape.kept)]
    shared = rule == "operators"
    if shared:
        parts[-1].kept.update(key for key, _, _ in parts[-1].actions[0].makes[:1])
    chains = [part.sweep(packed_bytes) for part in parts]
    after = Tape(late.actions, late.views, late.kept).sweep(packed_bytes)
    if not shared:
        chains.append(after)
    elif after.bytes > chains[-1].bytes:
        chains[-1] = after
    by_cause: dict[str, int] = defaultdict(int, always)
    for chain in chains:
        for cause, size in chain.by_cause.items():
            by_cause[cause] += size
    fullest = max(chains, key=lambda chain: chain.bytes)
    total = sum(chain.bytes for chain in chains) + sum(always.values())
    return Peak(total, fullest.moment, dict(by_cause), dict(always), fullest.largest)


def holds_anything(late: Tape) -> bool:
    """True if what follows the last micro-batch needs memory that is reused."""
    return any(action.makes for action in late.actions)


def split(tape: Tape) -> list[Tape]:
    """The chains of a tape, by their first actions, without what is there all the time."""
    chain_of: dict[str, int] = {}  # name -> an action that reads or makes it
    leader = list(range(len(tape.actions)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    for number, action in enumerate(tape.actions):
        names = [tape.root(key) for key in action.reads]
        for name in (*names, *(key for key, _, _ in action.makes)):
            if not name.startswith("always:"):
                leader[find(number)] = find(chain_of.setdefault(name, number))
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(len(tape.actions)):
        members[find(number)].append(number)
    return [
        Tape([tape.actions[n] for n in numbers], tape.views, set(tape.kept))
        for numbers in sorted(members.values())
    ]
