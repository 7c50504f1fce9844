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
class ExchangePrice:
    """What the exchange of gradients counts where it may run beside the backward pass.

    exchange:  for each second of it that may be hidden
    beside:    taken off for each second of the last backward pass
    latencies: whether they count; a bucket pays them once, so bounds have none
    ahead:     gathers of ZeRO's stage 3 may be hidden, too: of those of a parameter one counts, as
               its exchange does
    late:      operators whose gradients come when the backward pass is as good as over: they count
               whole, and of the backward passes of `last` no second does
    """

    exchange: float
    beside: float = 0.0
    latencies: bool = False
    ahead: bool = False
    late: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()

    def of(self, operator: str) -> float:
        """For each second of the exchange of gradients that `operator` makes."""
        return 1.0 if operator in self.late else self.exchange

    def off(self, operator: str) -> float:
        """Taken off for each second of the last backward pass of `operator`."""
        return 1.0 if operator in self.last else self.beside


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
    exchange:           prices at which tables are of steps that overlap, or of lower bounds of such
                        (`planner.tables`); None: of seconds one after the other
    """

    cluster: Cluster
    optimizer: str = "adam"
    comm_rule: CommRule = "shared_nic"
    memory_limit_bytes: float | None = None
    precision: str = "float32"
    back_end: str = "oneflow"
    overlap: bool = False
    ema: bool = False
    exchange: ExchangePrice | None = None

    def __post_init__(self) -> None:
        parameter_copies(self.optimizer)
        limit = self.memory_limit_bytes
        if limit is not None and not limit > 0:
            raise ValueError(f"memory_limit_bytes must be positive, got {limit}")

    @cached_property
    def comm(self) -> CommModel:
        return CommModel(self.cluster, self.comm_rule)

    @property
    def counts_latencies(self) -> bool:
        """Of the exchange of gradients."""
        return self.exchange is None or self.exchange.latencies

    def exchanged(self, seconds: NDArray[np.float64], operator: str) -> NDArray[np.float64]:
        """What seconds of the exchange of gradients that `operator` makes count.

        What cannot be does not at any price.
        """
        if self.exchange is None:
            return seconds
        return np.where(seconds < np.inf, self.exchange.of(operator) * seconds, np.inf)

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
        return float(self.cluster.memory_bytes)
