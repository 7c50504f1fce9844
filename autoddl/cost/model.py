"""Everything that prices a plan: the cluster, the communication rule and the training options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..cluster.spec import Cluster
from .comm import CommModel, CommRule
from .memory import parameter_copies


@dataclass(frozen=True)
class CostModel:
    """Prices for training on `cluster`.

    optimizer:          "sgd", "momentum", "adam" or "adamw": sets the memory of a parameter
    comm_rule:          "shared_nic" or the paper's "plain"
    memory_limit_bytes: per device; None takes the device's memory
    precision:          of the parameters, "float32" or "float16"
    """

    cluster: Cluster
    optimizer: str = "adam"
    comm_rule: CommRule = "shared_nic"
    memory_limit_bytes: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        parameter_copies(self.optimizer)
        limit = self.memory_limit_bytes
        if limit is not None and not limit > 0:
            raise ValueError(f"memory_limit_bytes must be positive, got {limit}")

    @cached_property
    def comm(self) -> CommModel:
        return CommModel(self.cluster, self.comm_rule)

    @property
    def parameter_copies(self) -> int:
        return parameter_copies(self.optimizer, self.precision)

    @property
    def limit_bytes(self) -> float:
        if self.memory_limit_bytes is not None:
            return float(self.memory_limit_bytes)
        return float(self.cluster.device.memory_bytes)
