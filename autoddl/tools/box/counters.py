"""The byte counters of a box's links.

A veth counts a packet of up to 64 kB that the kernel will cut only later (GSO) as one packet with
one header. So of what the counter shows, `packets x HEADER_BYTES` are headers, and the rest is
exactly what the programs sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .commands import run
from .spec import LINK, BoxSpec

HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps


@dataclass(frozen=True)
class LinkBytes:
    """What a host has sent and received through its link, with all headers."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    @property
    def sent_payload(self) -> int:
        """Bytes sent without headers."""
        return self.sent_bytes - HEADER_BYTES * self.sent_packets

    @property
    def received_payload(self) -> int:
        """Bytes received without headers."""
        return self.received_bytes - HEADER_BYTES * self.received_packets

    def __sub__(self, earlier: LinkBytes) -> LinkBytes:
        return LinkBytes(
            self.sent_bytes - earlier.sent_bytes,
            self.sent_packets - earlier.sent_packets,
            self.received_bytes - earlier.received_bytes,
            self.received_packets - earlier.received_packets,
        )


def read_links(spec: BoxSpec) -> tuple[LinkBytes, ...]:
    """The counters of every host's link, from outside. ValueError if the box is gone."""
    return tuple(_read_link(spec.host(index)) for index in range(spec.nodes))


def read_own_link(device: str = LINK) -> LinkBytes:
    """The counters of the link of the host on which this process runs."""
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == device:
                words = list(map(int, numbers.split()))
                return LinkBytes(words[8], words[9], words[0], words[1])
    raise ValueError(f"this process has no link {device!r}: it does not run in a box")


def _read_link(namespace: str) -> LinkBytes:
    (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", LINK))
    sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
    return LinkBytes(sent["bytes"], sent["packets"], received["bytes"], received["packets"])
