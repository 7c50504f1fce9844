"""The alpha-beta model of a link (AutoDDL section 3.1): n bytes take alpha + n beta seconds.

A collective sends several messages one after the other, and on real machines starting it costs a
fixed time as well, independent of its size and of the number of devices:

    seconds = call + messages alpha + bytes beta

`Link.seconds` computes this; the paper's model is the case call = 0. A point-to-point transfer is
started differently from a collective and has a latency of its own.

By default one alpha and one beta per link class price every group, including group shapes that
nobody measured. Some transports behave in ways that two numbers cannot describe: two hosts that
exchange large messages over one socket in each direction may, for example, wait for one another.
Where `autoddl calibrate` has measured a group's shape, a line of its own (`GroupLine`),

    seconds = latency_s + bytes * s_per_byte

is the better estimate, and `cost.collectives.CommModel` uses it instead of alpha and beta.

`Calibration` tells how the numbers of a machine file were measured: ranges, confidence intervals,
quality of fit. `autoddl calibrate` writes it. A price for a message or group outside its `ranges`
is an extrapolation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from .._files import OMIT, Count, Name, NotNegative, OneOf, Positive, checked

# A price counts as extrapolated for a message this many times larger than the largest measured one,
# or a group this many times wider than the widest. One step of the measured message sizes is a
# factor of 4, and the next larger group has at least twice the devices, so each is one step beyond
# the measurements. Smaller messages are no extrapolation: like the smallest measured one they are
# dominated by latency.
FAR_BYTES = 4.0
FAR_GROUP = 2.0

NUMBERS = ("call_s", "alpha_s", "beta_s_per_byte", "transfer_s")
PARAMETERS = (
    *(f"{link}.{name}" for link in ("intra", "inter") for name in NUMBERS),
    "device.shuffle_s_per_byte",
)


@checked
class Link:
    """What it costs to use a link, in one direction.

    alpha_s:         seconds per message
    beta_s_per_byte: seconds per byte
    call_s:          seconds to start one collective
    transfer_s:      latency of a point-to-point transfer, in seconds; None takes alpha_s
    computation_slowdown_ratio: by how much of its seconds computation takes longer while a
        collective uses the link (HiDup, SoCC 2022, Table 2: 0.14 of products beside an all-reduce)
    collective_slowdown_ratio:  the same of a collective on the link, while the device computes
    """

    alpha_s: NotNegative
    beta_s_per_byte: Positive
    call_s: Annotated[NotNegative, OMIT] = 0.0
    transfer_s: Annotated[NotNegative | None, Field(exclude_if=lambda s: s is None)] = None
    computation_slowdown_ratio: Annotated[NotNegative, OMIT] = 0.0
    collective_slowdown_ratio: Annotated[NotNegative, OMIT] = 0.0

    @property
    def numbers(self) -> tuple[str, ...]:
        """The fields that have a value."""
        optional = {
            "call_s": self.call_s > 0,
            "transfer_s": self.transfer_s is not None,
            "computation_slowdown_ratio": self.computation_slowdown_ratio > 0,
            "collective_slowdown_ratio": self.collective_slowdown_ratio > 0,
        }
        names = (field.name for field in dataclasses.fields(self))
        return tuple(name for name in names if optional.get(name, True))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return 1.0 / self.beta_s_per_byte

    @property
    def transfer_latency_s(self) -> float:
        return self.alpha_s if self.transfer_s is None else self.transfer_s

    def transfer_seconds(self, volume_bytes: float) -> float:
        """Seconds to send `volume_bytes` from one device to one other."""
        return self.transfer_latency_s + volume_bytes * self.beta_s_per_byte

    def seconds(self, messages: float, volume_bytes: float) -> float:
        """Seconds of one collective: `messages` messages in turn, `volume_bytes` in all."""
        return self.call_s + messages * self.alpha_s + volume_bytes * self.beta_s_per_byte


@checked
class GroupLine:
    """The price of collective `kind` in groups of nodes x gpus devices, `groups` of them per host.

    s_per_byte: per byte of the larger of a device's tensors before and after the collective
    """

    kind: Name
    nodes: Count
    gpus: Count
    groups: Count
    latency_s: NotNegative
    s_per_byte: NotNegative

    @property
    def shape(self) -> tuple[str, int, int, float]:
        return self.kind, self.nodes, self.gpus, float(self.groups)


def _in_order(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError(f"must be a pair [low, high], got {list(pair)}")
    return pair


Interval = Annotated[tuple[NotNegative, NotNegative], AfterValidator(_in_order)]


@checked
class Range:
    """Measured messages of one collective in groups of nodes x gpus devices, `groups` per host."""

    kind: Name
    nodes: Count
    gpus: Count
    groups: Count
    min_bytes: Count
    max_bytes: Count


@checked
class Calibration:
    """The record of a calibration in the machine file.

    date:       of the measurement, ISO 8601 in UTC
    samples:    how many collectives were timed
    confidence: level of the intervals
    intervals:  dotted name of a fitted number -> (low, high)
    r2:         share of the variance of the logarithm of the seconds that the fit explains
    errors:     collective -> median of |predicted / measured - 1|
    warnings:   reasons to distrust the fit, if any
    ranges:     the messages and groups that were measured
    command:    that measured, and with which `software`; "" in files that do not say it
    notes:      how well the times are known, and what was left out
    """

    date: Name
    samples: Count
    confidence: Positive
    intervals: Mapping[Annotated[str, OneOf(PARAMETERS)], Interval]
    r2: Annotated[float, Field(strict=True)]
    errors: Mapping[str, NotNegative]
    warnings: tuple[str, ...]
    ranges: tuple[Range, ...]
    command: Annotated[str, OMIT] = ""
    software: Annotated[str, OMIT] = ""
    notes: Annotated[tuple[str, ...], OMIT] = ()

    def covers(self, kind: str, nodes: int, gpus: int, groups: float, local_bytes: float) -> bool:
        """False if nothing near the collective's shape and size was measured."""
        near = [
            r
            for r in self.ranges
            if r.kind == kind
            and (r.nodes > 1) == (nodes > 1)
            and nodes <= FAR_GROUP * r.nodes
            and gpus <= FAR_GROUP * r.gpus
            and (nodes == 1 or groups <= FAR_GROUP * r.groups)
        ]
        return any(local_bytes <= r.max_bytes * FAR_BYTES for r in near)
