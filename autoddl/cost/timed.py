"""How many of a graph's operators are priced by a measurement of their own."""

from __future__ import annotations

from dataclasses import dataclass

from ..cluster.spec import Device
from ..graph.graph import Graph
from ..sbp.rules import find_rule
from .measured import times_of
from .operator import computes


@dataclass(frozen=True)
class Timed:
    """Of the operators that compute; both are zero where the device has no such measurements."""

    timed: int
    computing: int


def timed_operators(device: Device, graph: Graph) -> Timed:
    """Of `graph` on `device` (`cost.measured.operator_key` says which is which)."""
    found: list[bool] = []
    for op in graph.ops if device.operators else ():
        rule = find_rule(op.kind)
        if rule is not None and computes(graph.spec(op), rule):
            found.append(times_of(device, graph, op) is not None)
    return Timed(sum(found), len(found))
