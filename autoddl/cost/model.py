"""Everything that prices a plan: the cluster, the communication rule and the training options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Cluster
from ..sbp.mesh import Mesh
from .collectives import CommModel, CommRule
from .memory_rules import MemoryRules, rules_of

_Seconds = NDArray[np.floating[Any]]
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
class Ends:
    """Operators at both ends of a backward pass.

    early: before these are done, no gradient of a parameter can be exchanged
    late:  whose gradients come when it is as good as over
    left:  what is left of it when the first of these gradients is there
    """

    early: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StepPrice:
    """What seconds of a step count where computation and communication may run at once.

    computation: each second of it
    collectives: each between operators and inside them
    hidden:      each that may run beside computation: of the exchange of gradients, and of gathers
                 of ZeRO's stage 3
    last:        of these the last of each gradient and parameter, besides; so much is taken off for
                 each second of the last backward passes that may run beside these
    late:        the same for gradients that come late, and what is left of the backward passes
    in_flight:   micro-batches that have their last backward passes at once
    after:       of the exchange of gradients that travel once, besides: where that begins after
                 the last pass
    """

    computation: float
    collectives: float
    hidden: float
    last: float
    late: float
    in_flight: int = 1
    ends: Ends = Ends()
    after: float = 0.0

    def often(self, times: float) -> float:
        """For each second of what may run beside computation and runs so often."""
        return self.hidden * times + self.last

    def more(self, operator: str) -> float:
        """Besides, for each second of the exchange of gradients that `operator` makes."""
        return self.late * (operator in self.ends.late)

    def off(self, operator: str) -> float:
        """Taken off for each second of the backward pass of `operator` in one micro-batch."""
        last = self.last * (operator not in self.ends.early)
        return self.in_flight * (last + self.late * (operator in self.ends.left))

    def kind(self, operator: str) -> tuple[float, float]:
        """Equal for operators whose seconds count alike."""
        return self.more(operator), self.off(operator)


@dataclass(frozen=True)
class MemoryView:
    """What devices of one kind hold, and how much they may.

    mesh:  as they see it: along an uneven first axis they hold their own part
    times: so many times the memory of the device that has least, which a limit is stated for
    hosts: of that kind
    """

    mesh: Mesh
    times: float
    hosts: tuple[int, ...]

    def hides(self, other: MemoryView) -> bool:
        """Whether the other kind's devices are never fuller than these."""
        more = self.mesh.parts[:1] <= other.mesh.parts[:1]
        return more and self.times <= other.times


@dataclass(frozen=True)
class CostModel:
    """Prices for training on `cluster`.

    optimizer:          "sgd", "momentum", "adam" or "adamw": sets the memory of a parameter
    comm_rule:          "shared_nic" or the paper's "plain"
    memory_limit_bytes: per device, of unlike ones of that with least memory: the others may use as
                        many times more as they have; None takes the device's memory
    precision:          of the parameters, "float32", "float16" or "bfloat16"
    back_end:           that runs the plan: its memory rules say what a step needs
    overlap:            gradients may travel beside the backward pass
    ema:                an average of the parameters is kept beside them
    price:              at which tables are of steps that overlap (`planner.tables`); None: of
                        seconds one after the other
    counts_all:         memory is added up as if gradients read everything (`cost.memory`)
    """

    cluster: Cluster
    optimizer: str = "adam"
    comm_rule: CommRule = "shared_nic"
    memory_limit_bytes: float | None = None
    precision: str = "float32"
    back_end: str = "oneflow"
    overlap: bool = False
    ema: bool = False
    price: StepPrice | None = None
    counts_all: bool = False

    def __post_init__(self) -> None:
        parameter_copies(self.optimizer)
        limit = self.memory_limit_bytes
        if limit is not None and not limit > 0:
            raise ValueError(f"memory_limit_bytes must be positive, got {limit}")

    @cached_property
    def comm(self) -> CommModel:
        return CommModel(self.cluster, self.comm_rule)

    @property
    def computation(self) -> float:
        """What a second of computation counts."""
        return 1.0 if self.price is None else self.price.computation

    def moving(self, seconds: _Seconds) -> _Seconds:
        """What seconds between and inside operators count; what cannot be does not at any price."""
        if self.price is None:
            return seconds
        return np.where(seconds < np.inf, self.price.collectives * seconds, np.inf)

    def exchanged(
        self, seconds: NDArray[np.floating[Any]], operator: str = ""
    ) -> NDArray[np.floating[Any]]:
        """What seconds of the exchange of a gradient count that travels once.

        operator: that makes it, if nothing else has a use of the parameter
        """
        if self.price is None:
            return seconds
        times = self.price.often(1) + self.price.more(operator) + self.price.after
        return np.where(seconds < np.inf, times * seconds, np.inf)

    @property
    def parameter_copies(self) -> int:
        return parameter_copies(self.optimizer, self.precision, self.ema)

    def known(self, kind: str) -> dict[Any, Any]:
        """A cache of what has been computed at these prices, one for each kind of results."""
        return self._known.setdefault(kind, {})

    @cached_property
    def _known(self) -> dict[str, dict[Any, Any]]:
        return {}

    @cached_property
    def memory_rules(self) -> MemoryRules:
        return rules_of(self.back_end)

    @property
    def limit_bytes(self) -> float:
        if self.memory_limit_bytes is not None:
            return float(self.memory_limit_bytes)
        return float(self.cluster.memory_bytes)

    @cached_property
    def memory_views(self) -> tuple[MemoryView, ...]:
        """One view for each kind of devices that may be the fullest; one on machines all alike."""
        cluster, mesh = self.cluster, self.cluster.mesh
        hosts: list[list[int]] = [[] for _ in cluster.kinds]
        for node in range(cluster.nodes):
            hosts[cluster.kinds.index(cluster.kind_of(node))].append(node)
        largest = max(mesh.shares, default=1) / (sum(mesh.shares) or 1)
        views = [
            MemoryView(
                mesh.seen_by(kind.part * largest) if mesh.shares else mesh,
                kind.device.memory_bytes / cluster.memory_bytes,
                tuple(own),
            )
            for kind, own in zip(cluster.kinds, hosts, strict=True)
        ]
        kept: list[MemoryView] = []
        for number, view in enumerate(views):
            others = (*kept, *views[number + 1 :])
            if not any(other.hides(view) for other in others):
                kept.append(view)
        return tuple(kept)

    @cached_property
    def memory_mesh(self) -> Mesh:
        """The mesh at which bytes add up to no less than the fullest device holds.

        In bytes of the device with least memory: of what the first axis splits each tensor counts
        as much as it fills the device that it fills most.
        """
        if len(self.memory_views) == 1:
            return self.memory_views[0].mesh
        fullest = max(1 / (view.mesh.parts[0] * view.times) for view in self.memory_views)
        return self.cluster.mesh.seen_by(fullest)

    @cached_property
    def memory_devices(self) -> float:
        """How many devices with the least memory have as much as all have together."""
        kinds = (self.cluster.kind_of(node) for node in range(self.cluster.nodes))
        memory = sum(kind.device.memory_bytes for kind in kinds) / self.cluster.memory_bytes
        return memory * self.cluster.gpus_per_node
