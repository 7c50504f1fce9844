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
pieces together. Where the machine file has a line of their own for groups of this shape
(`cluster.link.GroupLine`), that is the price. Messages and bytes are those of the cluster's table
of collectives (`sbp.collectives`), from which `CommModel.price` computes both rules; where the
table has several algorithms of one collective, each has its price.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..cluster.link import GroupLine, Link
from ..cluster.spec import Cluster
from ..sbp.collectives import COLLECTIVES, Collectives, Step, StepKind, path_bytes
from ..sbp.edges import mask_axes
from ..sbp.layout import TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp
from ..sbp.work import Work

Prices = NDArray[np.float64]
CommRule = Literal["shared_nic", "plain"]
COMM_RULES: tuple[CommRule, ...] = ("shared_nic", "plain")


def work_of(
    way: StepKind, nodes: int, gpus: int, groups: float, collectives: Collectives = COLLECTIVES
) -> Work:
    """The work of a collective, or a "send", in groups of nodes x gpus devices.

    groups: so many of them share each NIC
    """
    if way == "send":
        return Work(1, groups if nodes > 1 else 0.0, 1.0)
    work = collectives[way].work
    assert work is not None, f"{way} sends nothing"
    return work(nodes, gpus, groups)


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

    @property
    def collectives(self) -> Collectives:
        """The table whose ways are priced."""
        return self.cluster.collectives

    @cached_property
    def _intra(self) -> Link:
        return self.cluster.common_link("intra")

    @cached_property
    def _shuffle_s_per_byte(self) -> float:
        return max(kind.device.shuffle_s_per_byte for kind in self.cluster.kinds)

    @cached_property
    def _lines(self) -> dict[tuple[str, int, int, float], GroupLine]:
        lines = self.cluster.lines if self.rule == "shared_nic" else ()
        return {line.shape: line for line in lines}

    def price(self, kind: StepKind, axes: tuple[int, ...]) -> tuple[float, float]:
        """(seconds of latency, seconds per byte) of one way of a step along `axes`.

        Bytes are the larger of the device's local bytes before and after the step.
        """
        nodes, gpus = self.mesh.topology(axes)
        if self.collectives[kind].is_local or nodes * gpus == 1:
            return 0.0, 0.0
        known = self._by_group.get((kind, nodes, gpus))
        if known is None:
            groups = self.cluster.gpus_per_node / gpus
            known = self._by_group[kind, nodes, gpus] = self.group_price(kind, nodes, gpus, groups)
        latency_s, s_per_byte = known
        uneven, _ = self.collectives[kind].bytes_along(self.mesh, axes)
        return latency_s, s_per_byte * uneven

    @cached_property
    def _by_group(self) -> dict[tuple[StepKind, int, int], tuple[float, float]]:
        return {}

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

    def ways(self, name: StepKind) -> tuple[StepKind, ...]:
        """The ways of a collective, the default first."""
        return tuple(e.way for e in self.collectives.entries if e.name == name)

    def cheapest(self, spec: TensorSpec, nd: NdSbp, steps: Iterable[Step]) -> tuple[Step, ...]:
        """The same `steps` from `nd` on, each by the algorithm that is cheapest for its bytes."""
        steps = tuple(steps)
        if not self.collectives.has_choices:
            return steps
        found: list[Step] = []
        for step, before, after in path_bytes(spec, steps, nd, self.mesh):
            ways = self.collectives.steps(step.source, step.target, step.axes)
            prices = [self.price(way.way, way.axes) for way in ways]
            seconds = [alpha_s + beta * max(before, after) for alpha_s, beta in prices]
            found.append(ways[seconds.index(min(seconds))])
        return tuple(found)

    def in_runs(self, kind: StepKind, size: float) -> Prices:
        """[axes as a number] seconds that are known of runs of axes; nan: not yet."""
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
        """(alpha, beta) for groups of nodes x gpus devices, `groups` of them at once on each host.

        `kind` may be "send" as well: from one device to one other, on the same host if nodes is 1.
        """
        line = self._lines.get((kind, nodes, gpus, groups))
        if line is not None:
            return line.latency_s, line.s_per_byte
        work = work_of(kind, nodes, gpus, groups, self.collectives)
        link = self._intra if nodes == 1 else self.cluster.common_link("inter")
        if work.further is not None:
            line = self._lines.get((self.collectives[kind].name, nodes, gpus, groups))
            if line is not None:
                return line.latency_s + work.further * link.alpha_s, line.s_per_byte
        if kind == "send":
            latency = link.transfer_latency_s
        else:
            latency = link.call_s + work.messages * link.alpha_s
        if nodes == 1 or self.rule == "plain":
            beta = work.device * link.beta_s_per_byte
        else:
            inside = work.device * self._intra.beta_s_per_byte if gpus > 1 else 0.0
            beta = max(work.nic * link.beta_s_per_byte, inside)
        return latency, beta + work.shuffled * self._shuffle_s_per_byte
