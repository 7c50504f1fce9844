"""Seconds of the passes and transfers of a pipeline, the input of its simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .schedule import Flow


@dataclass(frozen=True)
class Costs:
    """Seconds of one micro-batch, per part (virtual stage) and per flow.

    forward, backward, weight: of each part; the backward pass is `backward` + `weight`
    activation, gradient:      of each flow's transfers; a flow that is not listed costs nothing
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    activation: Mapping[Flow, float]
    gradient: Mapping[Flow, float]

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.backward) == len(self.weight):
            raise ValueError("costs need one forward, backward and weight time for each part")
        times = (*self.forward, *self.backward, *self.weight)
        if min((*times, *self.activation.values(), *self.gradient.values()), default=0.0) < 0:
            raise ValueError("costs cannot be negative")

    @staticmethod
    def uniform(
        parts: int,
        flows: Iterable[Flow],
        forward_s: float = 1.0,
        backward_s: float = 1.0,
        weight_s: float = 1.0,
        transfer_s: float = 0.0,
    ) -> Costs:
        """Costs of equal parts and equal transfers."""
        transfers = dict.fromkeys(flows, transfer_s)
        return Costs(
            (forward_s,) * parts, (backward_s,) * parts, (weight_s,) * parts, transfers, transfers
        )

    def seconds(self, kind: str, part: int) -> float:
        """Seconds of the computation `kind` (F, B or W) of a part."""
        return {"F": self.forward, "B": self.backward, "W": self.weight}[kind][part]

    def transfer_s(self, direction: str, flow: Flow) -> float:
        """Seconds to transfer the activations (F) or gradients (B) of a flow."""
        return (self.activation if direction == "F" else self.gradient).get(flow, 0.0)
