"""A measured price line of one collective in groups of one shape.

    seconds = latency_s + bytes * s_per_byte

By default one alpha and one beta per link class (AutoDDL section 3.1) price every group, including
group shapes that nobody measured. Some transports behave in ways that two numbers cannot describe:
two hosts that exchange large messages over one socket in each direction may, for example, wait for
one another. Where `autoddl calibrate` has measured a group's shape, this line is the better
estimate, and `cost.comm.CommModel` uses it instead of alpha and beta.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from .fields import Fields


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
