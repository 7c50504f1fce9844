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
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .fields import Fields


@dataclass(frozen=True, slots=True)
class Link:
    """What it costs to use a link, in one direction.

    alpha_s:         seconds per message
    beta_s_per_byte: seconds per byte
    call_s:          seconds to start one collective
    transfer_s:      latency of a point-to-point transfer, in seconds; None takes alpha_s
    """

    alpha_s: float
    beta_s_per_byte: float
    call_s: float = 0.0
    transfer_s: float | None = None

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


@dataclass(frozen=True, slots=True)
class GroupLine:
    """The price of collective `kind` in groups of nodes x gpus devices, `groups` of them per host.

    s_per_byte: per byte of the larger of a device's tensors before and after the collective
    """

    kind: str
    nodes: int
    gpus: int
    groups: int
    latency_s: float
    s_per_byte: float

    @property
    def shape(self) -> tuple[str, int, int, float]:
        return self.kind, self.nodes, self.gpus, float(self.groups)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Any, where: str) -> GroupLine:
        """Read one line; a ValueError names the field that is missing, unknown or wrong."""
        fields = Fields(data, where, (f.name for f in dataclasses.fields(GroupLine)))
        return GroupLine(
            fields.text("kind"),
            fields.count("nodes"),
            fields.count("gpus"),
            fields.count("groups"),
            fields.number("latency_s", zero=True),
            fields.number("s_per_byte", zero=True),
        )
