"""Chains: the actions that OneFlow's compiler orders strictly, and so lets share memory.

Actions are in one chain if tensors connect them. A change that leaves the chain (through the host,
or a collective on a mesh reduced to fewer axes) connects nothing: what it reads stays until the end
of its chain, what it makes is a buffer of its own. Each chain has a block of memory; what follows
the last micro-batch shares the block of the chain that starts last. Without micro-batches all
chains share one block.
"""

from __future__ import annotations

from collections import defaultdict

from .order import compiled_order
from .tape import Peak, Tape


def compiled_peak(tape: Tape, late: Tape, micro_batches: int) -> Peak:
    """The memory of a compiled step; `late` is what follows the last micro-batch."""
    ordered = compiled_order(tape)
    parts = split(ordered) if micro_batches > 1 else [Tape(ordered.actions, tape.views, tape.kept)]
    chains = [part.sweep(packed=True) for part in parts]
    if late.actions:
        after = late.sweep(packed=True)
        if not chains or after.bytes > chains[-1].bytes:
            chains[-1:] = [after]
    always = dict(tape.always)
    by_cause: dict[str, int] = defaultdict(int, always)
    for chain in chains:
        for cause, size in chain.by_cause.items():
            by_cause[cause] += size
    fullest = max(chains, key=lambda chain: chain.bytes)
    total = sum(chain.bytes for chain in chains) + sum(always.values())
    return Peak(total, fullest.moment, dict(by_cause), always, fullest.largest)


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
        Tape([tape.actions[n] for n in numbers], tape.views, tape.kept)
        for numbers in sorted(members.values())
    ]
