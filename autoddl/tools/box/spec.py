"""What a box looks like: its hosts, their namespaces and addresses, the rate of their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Real

from ..._files import expect

PREFIX = "autoddl-"
LINK = "eth0"  # a host's link, as the host sees it
MOST_HOSTS = 250  # numbered in one byte of their addresses
_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class BoxSpec:
    """`nodes` hosts of `gpus_per_node` processes; each link carries `rate` bit/s either way.

    rate: bits per second, of all hosts or of each; None leaves the links as fast as the machine
          makes them
    name: tells boxes on one machine apart
    """

    nodes: int
    gpus_per_node: int
    rate: float | tuple[float, ...] | None
    name: str = "box"

    def __post_init__(self) -> None:
        for count in self.nodes, self.gpus_per_node:
            expect(count, int, "a box has whole numbers of hosts and of processes on each")
        expect(self.name, str, "the name of a box is a str")
        if not 1 <= self.nodes <= MOST_HOSTS:
            raise ValueError(f"a box has 1 to {MOST_HOSTS} hosts, got {self.nodes}")
        if self.gpus_per_node < 1:
            raise ValueError(f"a host needs at least one process, got {self.gpus_per_node}")
        if isinstance(self.rate, tuple) and len(self.rate) != self.nodes:
            raise ValueError(f"{len(self.rate)} rates for {self.nodes} hosts: give one for each")
        for rate in self.rates:
            expect(rate, (Real, type(None)), 'a rate is such as "200mbit", or a number of bit/s')
            if rate is not None and not rate >= 1e5:
                raise ValueError(f"the rate must be at least 100kbit, got {rate:g} bit/s")
        if not re.fullmatch(r"[A-Za-z0-9.-]{1,40}", self.name):
            raise ValueError(f"{self.name!r} cannot name a box: use up to 40 letters, digits, . -")

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.nodes * self.gpus_per_node

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Of each host's link."""
        return self.rate if isinstance(self.rate, tuple) else (self.rate,) * self.nodes

    @property
    def router(self) -> str:
        """The namespace that joins the hosts."""
        return f"{PREFIX}{self.name}-router"

    def host(self, index: int) -> str:
        """The namespace of a host."""
        return f"{PREFIX}{self.name}-host{index}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (*(self.host(i) for i in range(self.nodes)), self.router)

    def address(self, index: int) -> str:
        """A host's address; each host has a subnet of its own with the router."""
        return f"10.77.{index}.2"

    def gateway(self, index: int) -> str:
        """The router's address on a host's subnet."""
        return f"10.77.{index}.1"

    def __str__(self) -> str:
        rates = self.rate if isinstance(self.rate, tuple) else (self.rate,)
        speed = ", ".join("unshaped" if rate is None else format_rate(rate) for rate in rates)
        return f"{self.nodes} hosts x {self.gpus_per_node} processes, links {speed}"


def parse_rate(text: str) -> float:
    """`200mbit` in bits per second. ValueError on anything that is no rate."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a rate; write e.g. 200mbit or 1gbit (bits per second)")
    return float(match[1]) * _UNITS[match[2]]


def format_rate(rate: float) -> str:
    """The inverse of `parse_rate`."""
    unit = next((u for u in ("gbit", "mbit", "kbit") if rate >= _UNITS[u]), "bit")
    return f"{rate / _UNITS[unit]:g}{unit}"
