"""Rounds of moves without a device in common: each device does one move at a time.

Devices go through their own moves in the plan's order. If neighbours in that order share a device,
one waits for the other, and those behind it wait too; in rounds all devices are busy at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...cluster.submesh import Device


def in_rounds(numbers: Sequence[int], devices: Mapping[int, Collection[Device]]) -> list[int]:
    """The numbers anew: always the first ones that have no device in common, then the rest.

    devices: of each number
    """
    left = list(numbers)
    order: list[int] = []
    while left:
        taken: set[Device] = set()
        rest = []
        for n in left:
            if taken.isdisjoint(devices[n]):
                taken.update(devices[n])
                order.append(n)
            else:
                rest.append(n)
        left = rest
    return order
