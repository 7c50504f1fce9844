"""Rounds of a pairwise exchange: each pair of a group meets once, each device one at a time.

For a power of two, device i meets i xor k in round k, so in each round all devices communicate
across the same levels of the mesh and no link waits for another. Other sizes use a round-robin
tournament (circle method); with an odd number, each device pauses in one round.
"""

from __future__ import annotations


def rounds(size: int, index: int) -> list[int]:
    """The partner of device `index` in each round, among `size` devices."""
    if size & (size - 1) == 0:
        return [index ^ k for k in range(1, size)]
    return [other for other in _tournament(size, index) if other < size]


def _tournament(size: int, index: int) -> list[int]:
    """The same for any size; the partner `size` stands for a pause."""
    last = size - 1 + size % 2  # stays in its place while the others go round the circle
    met = []
    for turn in range(last):
        if index == last:
            met.append(turn)
        else:
            other = (2 * turn - index) % last
            met.append(last if other == index else other)
    return met
