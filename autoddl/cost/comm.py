"""Prices of collectives on a cluster: AutoDDL Table II, the NIC shared by groups that cross it.

For a group of p ranks, n nodes x g GPUs on nodes of G GPUs, alpha and beta of a link class:

    all-gather, reduce-scatter of n_bytes in full   (p-1) alpha + (p-1)/p n_bytes beta
    all-reduce                                      twice that
    all-to-all of local bytes a rank                (p-1) alpha + (p-1)/p local beta

The paper's plain rule (section 4.2) takes the link inside a node if the group lies inside one, else
the link between nodes. Groups along the same axes run at the same time: G/g of them cross each NIC,
so the bytes through one NIC are (G/g) (p-1)/p n_bytes, and G local (p-g)/p for an all-to-all; the
slower of NIC and in-node link decides. `CommModel.price` computes both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..cluster.spec import Cluster
from ..sbp.mesh import Mesh
from ..sbp.redistribute import StepKind

CommRule = Literal["shared_nic", "plain"]
COMM_RULES: tuple[CommRule, ...] = ("shared_nic", "plain")


@dataclass(frozen=True)
class CommModel:
    """Prices steps on `cluster`. `rule` is "shared_nic" or the paper's "plain"."""

    cluster: Cluster
    rule: CommRule = "shared_nic"

    def __post_init__(self) -> None:
        if self.rule not in COMM_RULES:
            raise ValueError(f"unknown communication rule {self.rule!r}; use one of {COMM_RULES}")

    @cached_property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    def price(self, kind: StepKind, axes: tuple[int, ...]) -> tuple[float, float]:
        """(seconds of latency, seconds per byte) of a step along `axes`.

        Bytes are the larger of the device's local bytes before and after the step.
        """
        nodes, gpus = self.mesh.topology(axes)
        size = nodes * gpus
        if kind in ("slice", "to_partial") or size == 1:
            return 0.0, 0.0
        intra_factor = (size - 1) / size
        if kind == "all_to_all":
            nic_factor = self.cluster.gpus_per_node * (size - gpus) / size
        else:
            nic_factor = self.cluster.gpus_per_node / gpus * intra_factor
        link = self.cluster.intra if nodes == 1 else self.cluster.inter
        alpha_s = (size - 1) * link.alpha_s
        if nodes == 1 or self.rule == "plain":
            beta = intra_factor * link.beta_s_per_byte
        else:
            intra = intra_factor * self.cluster.intra.beta_s_per_byte if gpus > 1 else 0.0
            beta = max(nic_factor * link.beta_s_per_byte, intra)
        rounds = 2 if kind == "all_reduce" else 1
        return rounds * alpha_s, rounds * beta
