"""What is to be partitioned into pipeline stages (`Task`), and what a partition of it is.

The search stands in `partition`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...plans.stage import StagePrice
from ...sbp.mesh import SubMesh


class Shape(NamedTuple):
    """The devices of a stage: hosts, and devices of each.

    group:  of the hosts (0 if all are alike)
    beyond: how many of the hosts are the first ones of the next group, the others then being the
            last ones of `group`
    """

    nodes: int
    gpus: int
    group: int = 0
    beyond: int = 0

    @property
    def groups(self) -> tuple[int, ...]:
        """All groups that it has hosts of."""
        return (self.group, self.group + 1) if self.beyond else (self.group,)

    @property
    def size(self) -> int:
        """Devices."""
        return self.nodes * self.gpus

    def hosts(self, groups: int) -> tuple[int, ...]:
        """The whole hosts of each group that it takes."""
        own = {self.group: self.nodes - self.beyond, self.group + 1: self.beyond}
        return tuple(own.get(number, 0) for number in range(groups))

    def first_host(self, hosts: Sequence[int]) -> int:
        """Where it begins if it is of two groups, else the first of its group's `hosts`."""
        if not self.beyond:
            return sum(hosts[: self.group])
        return sum(hosts[: self.group + 1]) - (self.nodes - self.beyond)


# Shapes of hosts of two groups: of 4 + 4 hosts all are tried, of 2 + 16 those with one of either
_MOST_MIXED = 16
Cut = tuple[int, int, Shape]  # a stage's first layer, last layer + 1, and devices
Cuts = tuple[Cut, ...]
Array = NDArray[np.float64]
# (first layer, last layer + 1, shape, micro-batches, forward passes held) -> price; None: cannot be
PriceFn = Callable[[int, int, Shape, int, int], "StagePrice | None"]
# (shape, micro-batches, forward passes held) -> arrays [first layer, last layer + 1] of a
# micro-batch's seconds and of seconds once an iteration; infinite where the memory does not suffice
TimesFn = Callable[[Shape, int, int], "tuple[Array, Array]"]
# (first, last + 1, its shape, the next stage's, micro-batches) -> seconds of one micro-batch's
# activations and gradients that the stage exchanges with later ones
TransferFn = Callable[[int, int, Shape, Shape, int], float]
# (its shape, the next stage's, micro-batches) -> array [first layer, last layer + 1] of the same
TransfersFn = Callable[[Shape, Shape, int], "Array"]


@dataclass(frozen=True)
class Stage:
    """Layers [first, last) on `place`, which has `shape`; transfer_s: both ways, to later stages"""

    first: int
    last: int
    place: SubMesh
    price: StagePrice
    transfer_s: float
    shape: Shape


@dataclass(frozen=True)
class Partition:
    """Stages in order, for `micro_batches`; seconds: T of the module's docstring."""

    stages: tuple[Stage, ...]
    micro_batches: int
    seconds: float

    @property
    def cuts(self) -> Cuts:
        """The layers and devices of each stage."""
        return tuple((own.first, own.last, own.shape) for own in self.stages)

    @property
    def key(self) -> tuple[int, Cuts]:
        """Equal for partitions that are the same."""
        return self.micro_batches, self.cuts


class Learned:
    """What is known of stages once they have been planned, where their prices told otherwise.

    Prices lie between one placement and another, so they may promise what no placement keeps; and
    of transfers the layouts are not known before, which most of what is told wrongly comes from.
    On 61 MLPs in two stages on hosts of two kinds, on links of all speeds, a step takes 11 % less
    for this, in 1.6 times the time; where prices told right nothing is planned again.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._refuted: set[tuple[int, int, Shape, int, int]] = set()
        self._prices: dict[tuple[Shape, int, int], dict[tuple[int, int], StagePrice]] = {}
        self._sent: dict[tuple[Shape, Shape, int], dict[int, float]] = {}
        self._slower: dict[int, float] = {}

    def refute(self, first: int, last: int, shape: Shape, micro_batches: int, held: int) -> None:
        """Layers [first, last) do not fit.

        Nor do more layers, of fewer and larger micro-batches, with more of them in flight.
        """
        self._refuted.add((first, last, shape, micro_batches, held))

    def too_large(self, shape: Shape, micro_batches: int, held: int) -> NDArray[np.bool_]:
        """[first, last] -> whether these layers have been refuted."""
        found = np.zeros((self._layers + 1, self._layers + 1), dtype=bool)
        for first, last, own, parts, most in self._refuted:
            if own == shape and micro_batches <= parts and held >= most:
                found[: first + 1, last:] = True
        return found

    def note_price(self, stage: Stage, micro_batches: int, held: int, price: StagePrice) -> None:
        runs = self._prices.setdefault((stage.shape, micro_batches, held), {})
        runs[stage.first, stage.last] = price

    def price(
        self, first: int, last: int, shape: Shape, micro_batches: int, held: int, told: StagePrice
    ) -> StagePrice:
        """The price that is told, with the times that are known."""
        known = self._prices.get((shape, micro_batches, held), {}).get((first, last), told)
        times = known.forward_s, known.backward_s, known.once_s
        return StagePrice(*times, told.fixed_bytes, told.stash_bytes, told.work_bytes)

    def times(
        self, shape: Shape, micro_batches: int, held: int, each: Array, once: Array
    ) -> tuple[Array, Array]:
        """`TimesFn`'s arrays with the times that are known."""
        for run, price in self._prices.get((shape, micro_batches, held), {}).items():
            each[run], once[run] = price.forward_s + price.backward_s, price.once_s
        return each, once

    def note_sent(
        self, stage: Stage, following: Shape, micro_batches: int, seconds: float, told_s: float
    ) -> None:
        """What a stage sends and gets back takes so long; its price told `told_s`."""
        runs = self._sent.setdefault((stage.shape, following, micro_batches), {})
        runs[stage.last] = seconds
        if told_s > 0:
            known = self._slower.get(stage.last, np.inf)
            self._slower[stage.last] = max(1.0, min(known, seconds / told_s))

    def transfers(self, shape: Shape, following: Shape, micro_batches: int, told: Array) -> Array:
        """[first, last] of what is told, with what is known of the same cut.

        Between other devices it is taken to be as many times slower as it was at least.
        """
        for last, times in self._slower.items():
            told[:last, last] *= times
        for last, seconds in self._sent.get((shape, following, micro_batches), {}).items():
            told[:last, last] = seconds
        return told


@dataclass(frozen=True)
class Task:
    """A model that is to be cut into stages: its prices, the devices, and what may be chosen.

    groups:   hosts of each group, and how many times `memory_limit_bytes` their devices may hold;
              () if all are alike
    schedule: "gpipe", "1f1b", "eager-1f1b" or "zb-h1", for what a stage holds
    stages:   this many; None: any number up to `most_stages`
    overlap:  transfers run beside computation
    tolerance: the best T is found but for this part of it
    times:    gives the prices of all runs at once; None asks `price` for each
    transfers: gives all transfers at once; None asks `transfer` for each
    is_over: whether a partition that has been found will do
    mixes:    a stage may have hosts of two groups that follow one another
    """

    layers: int
    nodes: int
    gpus: int
    memory_limit_bytes: float
    price: PriceFn
    transfer: TransferFn
    schedule: str = "1f1b"
    stages: int | None = None
    most_stages: int | None = None
    overlap: bool = True
    tolerance: float = 0.0
    times: TimesFn | None = None
    transfers: TransfersFn | None = None
    is_over: Callable[[], bool] = lambda: False
    groups: tuple[tuple[int, float], ...] = ()
    mixes: bool = False

    @property
    def hosts(self) -> tuple[int, ...]:
        """The number of hosts of each group."""
        return tuple(count for count, _ in self.groups) or (self.nodes,)

    def room(self, shape: Shape) -> float:
        """How many times the limit the devices that a stage of this shape has may hold."""
        return min(self.groups[g][1] for g in shape.groups) if self.groups else 1.0


def in_flight(schedule: str, behind: int, stages: int, micro_batches: int) -> int:
    """Forward passes that a stage holds, the `behind`-th from the end (the last is 1)."""
    held = {
        "gpipe": micro_batches,
        "1f1b": behind,
        "eager-1f1b": 2 * behind - 1,
        "zb-h1": stages,
    }
    if schedule not in held:
        raise ValueError(f"no partition for schedule {schedule!r}; known: {', '.join(held)}")
    return min(held[schedule], micro_batches)


def shapes_of(nodes: int, gpus: int, most_stages: int) -> tuple[tuple[int, int], ...]:
    """Hosts and devices of each that a stage may have: divisors of a host, and whole hosts.

    On many hosts only such that divide them, and as many as `most_stages` equal stages leave.
    """
    parts = [(1, g) for g in range(1, gpus) if gpus % g == 0 and nodes <= most_stages]
    if nodes <= 16:
        return (*parts, *((n, gpus) for n in range(1, nodes + 1)))
    whole = [n for n in range(1, nodes + 1) if nodes % n == 0 and n * most_stages >= nodes]
    return (*parts, *((n, gpus) for n in whole))


def equal_shape(nodes: int, gpus: int, stages: int) -> Shape | None:
    """Hosts and devices of each of `stages` equal parts of a cluster, if there are such."""
    if nodes % stages == 0:
        return Shape(nodes // stages, gpus)
    if stages % nodes == 0 and gpus % (stages // nodes) == 0:
        return Shape(1, gpus * nodes // stages)
    return None


def equal_shapes(nodes: int, gpus: int, stages: int) -> Shape:
    """Hosts and devices of each of `stages` equal parts. ValueError if there are none such."""
    shape = equal_shape(nodes, gpus, stages)
    if shape is None:
        raise ValueError(
            f"an interleaved pipeline has equal stages: {nodes} x {gpus} devices do not divide "
            f"into {stages} parts; ask for another number of stages"
        )
    return shape


def possible_shapes(task: Task, most: int) -> tuple[Shape, ...]:
    """The sub-meshes that leave a device to each other stage, if the number is given."""
    left = task.nodes * task.gpus - (task.stages or 1) + 1
    shapes = [
        Shape(nodes, gpus, group)
        for group, hosts in enumerate(task.hosts)
        for nodes, gpus in shapes_of(hosts, task.gpus, most)
    ]
    if task.mixes:
        shapes += _mixed_shapes(task)
    return tuple(shape for shape in shapes if shape.size <= left)


def _mixed_shapes(task: Task) -> Iterator[Shape]:
    """Hosts of two groups; of many, a single one of either, as each has to be searched."""
    for group, (one, two) in enumerate(itertools.pairwise(task.hosts)):
        for before, beyond in itertools.product(range(1, one + 1), range(1, two + 1)):
            is_one_of_few = min(before, beyond) == 1 or one * two <= _MOST_MIXED
            if is_one_of_few and before + beyond < task.nodes:
                yield Shape(before + beyond, task.gpus, group, beyond)


def most_stages(task: Task) -> int:
    devices = task.nodes * task.gpus
    wanted = task.stages
    if wanted is not None:
        if wanted < 1:
            raise ValueError(f"a pipeline has at least one stage, got {wanted}")
        if wanted > task.layers:
            raise ValueError(
                f"{wanted} stages are more than the model's {task.layers} layers; "
                "ask for fewer stages"
            )
        if wanted > devices:
            raise ValueError(
                f"{wanted} stages are more than the {devices} devices; ask for fewer stages"
            )
        return wanted
    most = task.most_stages if task.most_stages is not None else devices
    return max(1, min(most, task.layers, devices))


def iteration_s(stages: Sequence[Stage], micro_batches: int, overlap: bool) -> float:
    """T of the module's docstring."""
    latency = pace = 0.0
    for stage in stages:
        each = stage.price.forward_s + stage.price.backward_s
        moved = stage.transfer_s
        latency += each + moved
        period = max(each, moved) if overlap else each + moved
        pace = max(pace, (micro_batches - 1) * period + stage.price.once_s)
    return latency + pace


def nothing_fits(task: Task, micro_batch_counts: Sequence[int]) -> str:
    """Which layer needs how much, on which sub-mesh."""
    most = most_stages(task)
    worst = (0.0, 0, Shape(1, 1), 1)
    for layer in range(task.layers):
        options = []
        for shape in possible_shapes(task, most):
            for m in micro_batch_counts:
                price = task.price(layer, layer + 1, shape, m, 1)
                if price is not None:
                    options.append((price.memory_bytes(1) / task.room(shape), layer, shape, m))
        if options:
            worst = max(worst, min(options))
    needed, layer, (nodes, gpus, *_), m = worst
    stages = "any number of" if task.stages is None else str(task.stages)
    if needed > task.memory_limit_bytes:
        why = (
            f"The largest layer, number {layer}, needs at least {needed / 1e9:.3g} GB on {nodes} x "
            f"{gpus} devices with {m} micro-batches, alone in a stage and with one of them in "
            "flight"
        )
    else:
        why = (
            f"Each layer by itself would fit in a stage, but not all {task.layers} of them, with "
            "the micro-batches in flight"
        )
    return (
        f"no partition into {stages} stages with {_listed(micro_batch_counts)} micro-batches fits "
        f"the memory limit of {task.memory_limit_bytes / 1e9:.3g} GB a device. {why}. What would "
        "help: more devices or memory, more micro-batches, another number of stages"
    )


def _listed(counts: Sequence[int]) -> str:
    return " or ".join(map(str, counts))
