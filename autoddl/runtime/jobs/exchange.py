"""Rounds in which all pairs of a group meet once, each device with one other at a time.

For a power of two, device i meets i xor k in round k: in each round all devices cross the same
levels of the mesh, so that no link waits for another. Any other number is a round-robin tournament
(circle method), in which a device of an odd number sits one round out.
"""

from __future__ import annotations


def rounds(size: int, index: int) -> list[int]:
    """Whom device `index` of `size` meets, round by round."""
    if size & (size - 1) == 0:
        return [index ^ k for k in range(1, size)]
    return [other for other in _tournament(size, index) if other < size]


def _tournament(size: int, index: int) -> list[int]:
    """The same for any size; `size` itself stands for a pause."""
    last = size - 1 + size % 2  # stays in its place while the others go round the circle
    met = []
    for turn in range(last):
        if index == last:
            met.append(turn)
        else:
            other = (2 * turn - index) % last
            met.append(last if other == index else other)
    return met
