"""Orders moves into rounds in which no two moves share a device.

Devices go through their own moves in the plan's order. If two successive moves in that order share
a device, one must wait for the other, and later moves wait as well; within a round all devices can
work at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...cluster.submesh import Device


def in_rounds(numbers: Sequence[int], devices: Mapping[int, Collection[Device]]) -> list[int]:
    """The moves reordered: repeatedly the first ones without a common device, then the rest.

    devices: the devices of each move
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
