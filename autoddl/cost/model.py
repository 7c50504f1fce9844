"""Everything that prices a plan: the cluster, the communication rule and the training options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Cluster
from .collectives import CommModel, CommRule
from .memory_rules import MemoryRules, rules_of

OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def parameter_copies(optimizer: str, precision: str = "float32", ema: bool = False) -> int:
    """How many tensors of a parameter's bytes live on a device: weight, gradient, slots, average.

    With 16-bit parameters the slots are float32 nonetheless, and there is a master copy.
    """
    try:
        slots = OPTIMIZER_SLOTS[optimizer]
        return 2 + ema + (slots if precision == "float32" else 2 * (slots + 1))
    except KeyError:
        known = ", ".join(OPTIMIZER_SLOTS)
        raise ValueError(f"unknown optimizer {optimizer!r} for planning; known: {known}") from None


@dataclass(frozen=True)
class CostModel:
    """Prices for training on `cluster`.

    optimizer:          "sgd", "momentum", "adam" or "adamw": sets the memory of a parameter
    comm_rule:          "shared_nic" or the paper's "plain"
    memory_limit_bytes: per device; None takes the device's memory
    precision:          of the parameters, "float32", "float16" or "bfloat16"
    back_end:           that runs the plan: its memory rules say what a step needs
    overlap:            gradients may travel beside the backward pass
    ema:                an average of the parameters is kept beside them
    exchange_price:     between 0 and 1, of a second of that: then tables are of lower bounds of
                        steps that overlap (`planner.tables`); None: of seconds one after the other
    """

    cluster: Cluster
    optimizer: str = "adam"
    comm_rule: CommRule = "shared_nic"
    memory_limit_bytes: float | None = None
    precision: str = "float32"
    back_end: str = "oneflow"
    overlap: bool = False
    ema: bool = False
    exchange_price: float | None = None

    def __post_init__(self) -> None:
        parameter_copies(self.optimizer)
        limit = self.memory_limit_bytes
        if limit is not None and not limit > 0:
            raise ValueError(f"memory_limit_bytes must be positive, got {limit}")

    @cached_property
    def comm(self) -> CommModel:
        return CommModel(self.cluster, self.comm_rule)

    def exchanged(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """What seconds of the exchange of gradients count; what cannot be does not at any price."""
        price = self.exchange_price
        return seconds if price is None else np.where(seconds < np.inf, price * seconds, np.inf)

    @property
    def parameter_copies(self) -> int:
        return parameter_copies(self.optimizer, self.precision, self.ema)

    @cached_property
    def memory_rules(self) -> MemoryRules:
        return rules_of(self.back_end)

    @property
    def limit_bytes(self) -> float:
        if self.memory_limit_bytes is not None:
            return float(self.memory_limit_bytes)
        return float(self.cluster.device.memory_bytes)
