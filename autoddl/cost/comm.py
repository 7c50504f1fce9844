"""Prices of collectives on a cluster: AutoDDL Table II, the NIC shared by groups that cross it.

For a group of p ranks, n nodes x g GPUs on nodes of G GPUs, alpha and beta of a link class:

    all-gather, reduce-scatter of n_bytes in full   (p-1) alpha + (p-1)/p n_bytes beta
    all-reduce                                      twice that
    all-to-all of local bytes a rank                (p-1) alpha + (p-1)/p local beta
    send of n_bytes to the other of two ranks       alpha + n_bytes beta

The paper's plain rule (section 4.2) takes the link inside a node if the group lies inside one, else
the link between nodes. Groups along the same axes run at the same time: G/g of them cross each NIC,
so the bytes through one NIC are (G/g) (p-1)/p n_bytes, and G local (p-g)/p for an all-to-all; the
slower of NIC and in-node link decides. On a machine where they were measured, each collective costs
the link's `call_s` once as well, and the device's `shuffle_s_per_byte` for each byte each time that
it passes over the tensor itself, to copy it into and out of buffers, to sum, or to bring scattered
pieces together (`PASSES`). Where the machine file has a line of their own for groups of this shape
(`cluster.group_line`), that is the price. `work_of` counts messages and bytes, `CommModel.price`
computes both rules from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..cluster.group_line import GroupLine
from ..cluster.spec import Cluster
from ..sbp.edges import mask_axes
from ..sbp.mesh import Mesh
from ..sbp.redistribute import StepKind

Prices = NDArray[np.float64]
CommRule = Literal["shared_nic", "plain"]
COMM_RULES: tuple[CommRule, ...] = ("shared_nic", "plain")

# How often a device passes over the larger of its tensors before and after: a gathered tensor is
# written once; one to be reduced is copied and summed; an all-to-all cuts, copies and joins.
PASSES = {"all_gather": 1.0, "reduce_scatter": 2.0, "all_reduce": 2.0, "all_to_all": 3.0}


@dataclass(frozen=True, slots=True)
class Work:
    """What a collective of one byte does; bytes are the larger of a device's before and after.

    messages: one after the other
    nic:      bytes through each NIC; 0 inside a node
    device:   bytes that each device sends
    shuffled: bytes that each device copies or sums itself
    """

    messages: int
    nic: float
    device: float
    shuffled: float = 0.0


def work_of(kind: str, nodes: int, gpus: int, groups: float) -> Work:
    """The work of `kind` in groups of nodes x gpus devices, `groups` of which share each NIC."""
    size = nodes * gpus
    if kind == "send":
        return Work(1, groups if nodes > 1 else 0.0, 1.0)
    rounds = 2 if kind == "all_reduce" else 1
    device = rounds * (size - 1) / size
    if nodes == 1:
        nic = 0.0
    elif kind == "all_to_all":
        nic = groups * gpus * (size - gpus) / size
    else:
        nic = groups * device
    return Work(rounds * (size - 1), nic, device, PASSES[kind])


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

    @cached_property
    def _lines(self) -> dict[tuple[str, int, int, float], GroupLine]:
        lines = self.cluster.lines if self.rule == "shared_nic" else ()
        return {line.shape: line for line in lines}

    def price(self, kind: StepKind, axes: tuple[int, ...]) -> tuple[float, float]:
        """(seconds of latency, seconds per byte) of a step along `axes`.

        Bytes are the larger of the device's local bytes before and after the step.
        """
        nodes, gpus = self.mesh.topology(axes)
        if kind in ("slice", "to_partial") or nodes * gpus == 1:
            return 0.0, 0.0
        return self.group_price(kind, nodes, gpus, self.cluster.gpus_per_node / gpus)

    def prices(self, kind: StepKind, masks: NDArray[np.int64]) -> tuple[Prices, Prices]:
        """`price` for an array of axes, each as a number of which bit a stands for axis a."""
        known = self._by_mask.get(kind)
        if known is None:
            known = self._by_mask[kind] = np.full((2, 1 << self.mesh.num_axes), np.nan)
        alpha_s, beta_s_per_byte = known[:, masks]
        if np.isnan(alpha_s).any():
            for mask in np.unique(masks[np.isnan(alpha_s)]).tolist():
                known[:, mask] = self.price(kind, mask_axes(mask))
            alpha_s, beta_s_per_byte = known[:, masks]
        return alpha_s, beta_s_per_byte

    @cached_property
    def _by_mask(self) -> dict[StepKind, Prices]:
        return {}

    def in_runs(self, kind: StepKind, size: float) -> Prices:
        """[axes as a number] seconds that are known of `cost.storage`'s runs; nan: not yet."""
        known = self._in_runs.get((kind, size))
        if known is None:
            known = self._in_runs[kind, size] = np.full(1 << self.mesh.num_axes, np.nan)
        return known

    @cached_property
    def _in_runs(self) -> dict[tuple[StepKind, float], Prices]:
        return {}

    def group_price(
        self, kind: str, nodes: int, gpus: int, groups: float = 1.0
    ) -> tuple[float, float]:
        """The same for groups of nodes x gpus devices, `groups` of them at once on each host.

        `kind` may be "send" as well: from one device to one other, on the same host if nodes is 1.
        """
        line = self._lines.get((kind, nodes, gpus, groups))
        if line is not None:
            return line.latency_s, line.s_per_byte
        work = work_of(kind, nodes, gpus, groups)
        link = self.cluster.intra if nodes == 1 else self.cluster.inter
        if kind == "send":
            latency = link.transfer_latency_s
        else:
            latency = link.call_s + work.messages * link.alpha_s
        if nodes == 1 or self.rule == "plain":
            beta = work.device * link.beta_s_per_byte
        else:
            inside = work.device * self.cluster.intra.beta_s_per_byte if gpus > 1 else 0.0
            beta = max(work.nic * link.beta_s_per_byte, inside)
        return latency, beta + work.shuffled * self.cluster.device.shuffle_s_per_byte
