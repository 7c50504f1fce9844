"""Whose turn it is of several micro-batches that are in flight in one step of a mesh: the data.

A strand is what one micro-batch does in a step: of N operators (`StepMaker.operators`) it passes
through 4 N positions, and is at position

    2 i + 1            when the collectives that bring inputs to operator i are issued
    2 i + 2            when operator i is, with the collectives inside of it
    2 N + 2 j + 1      when the backward pass of operator i = N - 1 - j is, with all that is run
                       again or gathered for it
    2 N + 2 j + 2      when the collectives of its inputs' gradients are

A plan's `turns` are pairs (strand, position that it goes on to), in the one order in which every
device issues them. Micro-batches run in groups of as many as there are strands, group by group, and
each group in these turns. Computation goes to one queue and collectives to another, so that one
strand's run beside the other's computation; within a strand, each waits for the one before.

No strand is ahead of one before it. So gradients are added up in the order of micro-batches, and a
group's are there when its last strand has made them. It costs nothing where all strands are alike:
where one overtakes another, they may change their names.
"""

from __future__ import annotations

Turns = tuple[tuple[int, int], ...]


def num_strands(turns: Turns) -> int:
    """How many micro-batches are in flight at once."""
    return 1 + max((strand for strand, _ in turns), default=0)


def check_turns(turns: Turns, operators: int, micro_batches: int) -> None:
    """ValueError unless each strand passes through all positions, none ahead of one before it.

    operators: that run, without sources
    """
    if not turns:
        return
    count, last = num_strands(turns), 4 * operators
    if micro_batches % count:
        raise ValueError(
            f"the plan's turns are of {count} micro-batches in flight, which do not divide its "
            f"{micro_batches} micro-batches"
        )
    at = [0] * count
    for strand, position in turns:
        ahead = at[strand - 1] if strand else last
        if not at[strand] < position <= ahead:
            raise ValueError(
                f"the plan's turns take micro-batch {strand} in flight from position {at[strand]} "
                f"to {position}: it must rise, to {ahead} at most"
            )
        at[strand] = position
    if count == 1 or any(position != last for position in at):
        raise ValueError(
            f"the plan's turns leave {count} micro-batches in flight at positions {at}: there must "
            f"be two or more, and each must get to position {last}"
        )
