"""What a collective takes in groups of one shape, where that was measured: a line of its own.

    seconds = latency_s + bytes * s_per_byte

One alpha and beta per link class (AutoDDL section 3.1) price every group, also those that nobody
measured. Transports have habits that they do not describe: two hosts that exchange large messages
over one socket each way, say, may wait for one another. Where a group's shape was measured, its own
line says what it takes; `cost.comm.CommModel` prefers it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .fields import Fields


@dataclass(frozen=True, slots=True)
class GroupLine:
    """`kind` in groups of nodes x gpus devices, `groups` of them at once on each host.

    s_per_byte: of the larger of a device's bytes before and after
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
        """ValueError names a field that is missing, unknown or has no sensible value."""
        fields = Fields(data, where, (f.name for f in dataclasses.fields(GroupLine)))
        return GroupLine(
            fields.text("kind"),
            fields.count("nodes"),
            fields.count("gpus"),
            fields.count("groups"),
            fields.number("latency_s", zero=True),
            fields.number("s_per_byte", zero=True),
        )
