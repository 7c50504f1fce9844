"""What a micro-batch keeps between its passes, and several of them in flight together, in turns.

A strand is one micro-batch's way through a step, forward and backward. Two of them keep both queues
of a device busy: one computes while tensors of the other travel (HiDup, SoCC '22, section 3.1). The
order in which they take turns is the plan's, the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..backend import Tensor
from .program import Node
from .vjp import Record

Values = dict[str, Tensor]
Turns = Sequence[tuple[int, int]]  # (strand, the position that it goes on to)


@dataclass
class Pass:
    """A forward pass, as its backward pass needs it.

    records: by operator; None for those that are run again, and for sinks
    kept:    the inputs of each block that is run again
    """

    records: list[Record | None] = field(default_factory=list)
    kept: dict[int, Values] = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    loss: Tensor | None = None


@dataclass(frozen=True)
class Delayed:
    """An operator's parameter gradients that are still to be taken, from its outputs' gradients."""

    node: Node
    record: Record
    taken: Sequence[Tensor | None]
    inputs: tuple[int, ...]


def take_turns(
    strands: Sequence[Iterator[None]], turns: Turns, switch: Callable[[int], None]
) -> None:
    """Run all strands to their ends, as `turns` say; `switch` is told which one goes on.

    A strand's position is how often it has stopped.
    """
    positions = [0] * len(strands)
    for strand, position in turns:
        switch(strand)
        for _ in range(positions[strand], position):
            next(strands[strand])
        positions[strand] = position
    for number, strand in enumerate(strands):
        switch(number)
        for _ in strand:
            raise AssertionError(f"strand {number} has not reached its end: {positions}")
