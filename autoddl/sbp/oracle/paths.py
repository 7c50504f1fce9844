"""Redistribution on simulated devices: the steps as messages between NumPy arrays.

Each collective runs by the algorithm that its price assumes (AutoDDL Table II): all-gather and
reduce-scatter round a ring, an all-reduce as the one after the other, an all-to-all pairwise.
Messages are counted, so that the table can be held to the bytes that really moved.
`scatter` gives the shards to start from, `assemble` puts the result together. `WAYS` says how each
way of the table of collectives is carried out; another algorithm is given to `run_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..collectives import Step, StepKind
from ..layout import piece_of
from ..mesh import Axis, Mesh
from ..placement import NdSbp
from ..work import Evening
from .devices import Array


@dataclass
class Network:
    """Delivers messages and counts them. `sent[a, b]`: bytes from rank a to rank b."""

    mesh: Mesh
    sent: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((self.mesh.size, self.mesh.size), dtype=np.int64)

    def send(self, source: int, target: int, message: Array) -> Array:
        """What `target` receives."""
        self.sent[source, target] += message.nbytes
        return message.copy()

    @property
    def device_bytes(self) -> NDArray[np.int64]:
        """[ranks]: bytes that each device sent."""
        return self.sent.sum(axis=1)

    @property
    def nic_bytes(self) -> NDArray[np.int64]:
        """[nodes]: bytes that each node sent to other nodes."""
        nodes, gpus = self.mesh.nodes, self.mesh.gpus_per_node
        between = self.sent.reshape(nodes, gpus, nodes, gpus).sum(axis=(1, 3))
        return between.sum(axis=1) - between.diagonal()


# (network, step, ranks of a group, their shards) -> their shards after the step
Way = Callable[[Network, Step, tuple[int, ...], list[Array]], list[Array]]


def run_steps(
    shards: Sequence[Array],
    steps: Sequence[Step],
    nd: NdSbp,
    mesh: Mesh,
    ways: Mapping[StepKind, Way] | None = None,
) -> tuple[list[Array], list[Network]]:
    """Each rank's shard after `steps` from `nd` on, and what each step sent.

    ways: how those are carried out that are not in `WAYS`
    """
    known = {**WAYS, **(ways or {})}
    held, networks = list(shards), []
    for step in steps:
        nd = step.apply(nd)
        network = Network(mesh)
        for group in sorted({mesh.group(rank, step.axes) for rank in range(mesh.size)}):
            after = known[step.way](network, step, group, [held[rank] for rank in group])
            for rank, shard in zip(group, after, strict=True):
                held[rank] = shard
        networks.append(network)
    return held, networks


def _cut(network: Network, step: Step, shards: list[Array]) -> list[list[Array]]:
    """Of each shard the pieces of the dim that the step splits."""
    axes = [network.mesh.axes[a] for a in step.axes]
    return [_pieces(x, step.target.dim, axes) for x in shards]


def _all_gather(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    return [np.concatenate(b, step.source.dim) for b in _ring_gather(network, group, shards)]


def _reduce_scatter(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    return _ring_reduce(network, group, _cut(network, step, shards))


def _balanced_gather(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    dim = step.source.dim
    flat = [np.moveaxis(x, dim, 0).ravel() for x in shards]
    evening = Evening(tuple(x.size for x in flat))
    parts = [np.zeros(evening.part, x.dtype) for x in flat]
    for device, x in enumerate(flat):
        parts[device][: evening.kept(device)] = x[: evening.kept(device)]
    for m in evening.moves:
        piece = flat[m.source][m.start : m.start + m.size]
        parts[m.target][m.at : m.at + m.size] = network.send(
            group[m.source], group[m.target], piece
        )
    found = []
    rest = np.moveaxis(shards[0], dim, 0).shape[1:]
    for held in _ring_gather(network, group, parts):
        every = np.concatenate(held)
        places = [place for n in range(len(group)) for place in evening.places(n)]
        whole = np.concatenate([every[start : start + size] for start, size in places])
        found.append(np.moveaxis(whole.reshape(-1, *rest), 0, dim))
    return found


def _balanced_scatter(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    dim = step.target.dim
    cut = _cut(network, step, shards)
    shapes = [np.moveaxis(piece, dim, 0).shape for piece in cut[0]]
    evening = Evening(tuple(piece.size for piece in cut[0]))
    every = []
    for pieces in cut:
        held = np.zeros(evening.part * len(group), shards[0].dtype)
        for device, piece in enumerate(pieces):
            rest = np.moveaxis(piece, dim, 0).ravel()
            for start, size in evening.places(device):
                held[start : start + size], rest = rest[:size], rest[size:]
        every.append(list(held.reshape(len(group), -1)))
    parts = _ring_reduce(network, group, every)
    found = []
    for device, shape in enumerate(shapes):
        back = [
            network.send(group[m.target], group[device], parts[m.target][m.at : m.at + m.size])
            for m in evening.sent(device)
        ]
        piece = np.concatenate([parts[device][: evening.kept(device)], *back])
        found.append(np.moveaxis(piece.reshape(shape), 0, dim))
    return found


def _all_reduce(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    pieces = [np.array_split(x.ravel(), len(group)) for x in shards]
    sums = _ring_gather(network, group, _ring_reduce(network, group, pieces))
    return [np.concatenate(b).reshape(shards[0].shape) for b in sums]


def _all_to_all(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    swapped = _pairwise(network, group, _cut(network, step, shards))
    return [np.concatenate(b, step.source.dim) for b in swapped]


def _slice(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    return [pieces[i] for i, pieces in enumerate(_cut(network, step, shards))]


def _to_partial(
    network: Network, step: Step, group: tuple[int, ...], shards: list[Array]
) -> list[Array]:
    """Summands without a message. From B the first device keeps all, from S each its own part."""
    if step.source.is_broadcast:
        return [shards[0], *(np.zeros_like(x) for x in shards[1:])]
    zeros = [np.zeros_like(x) for x in shards]
    return [
        np.concatenate([*zeros[:i], x, *zeros[i + 1 :]], step.source.dim)
        for i, x in enumerate(shards)
    ]


WAYS: Mapping[StepKind, Way] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "slice": _slice,
    "to_partial": _to_partial,
    "all_gather[balanced]": _balanced_gather,
    "reduce_scatter[balanced]": _balanced_scatter,
}


def _pieces(whole: Array, dim: int, axes: Sequence[Axis]) -> list[Array]:
    """Pieces of `dim`, nested over the axes, in row-major order."""
    ranges = [(0, whole.shape[dim])]
    for axis in axes:
        ranges = [piece_of(*r, axis, i) for r in ranges for i in range(axis.extent)]
    before = (slice(None),) * dim
    return [whole[(*before, slice(low, high))] for low, high in ranges]


def _ring_gather(
    network: Network, group: tuple[int, ...], blocks: Sequence[Array]
) -> list[list[Array]]:
    """Per device the blocks of all: each passes on what it received the round before."""
    size = len(group)
    held = [{i: block} for i, block in enumerate(blocks)]
    for turn in range(size - 1):
        passed = [(i, (i - turn) % size) for i in range(size)]
        for i, block in passed:
            to = (i + 1) % size
            held[to][block] = network.send(group[i], group[to], held[i][block])
    return [[blocks[i] for i in range(size)] for blocks in held]


def _ring_reduce(
    network: Network, group: tuple[int, ...], pieces: Sequence[Sequence[Array]]
) -> list[Array]:
    """Per device the sum of its piece: sums travel round the ring and grow at each stop."""
    size = len(group)
    sums = [list(own) for own in pieces]
    for turn in range(size - 1):
        for i in range(size):
            to, piece = (i + 1) % size, (i - turn - 1) % size
            sums[to][piece] = sums[to][piece] + network.send(group[i], group[to], sums[i][piece])
    return [sums[i][i] for i in range(size)]


def _pairwise(
    network: Network, group: tuple[int, ...], pieces: Sequence[Sequence[Array]]
) -> list[list[Array]]:
    """Per device the pieces that all the others hold for it."""
    return [
        [
            pieces[i][to] if i == to else network.send(group[i], group[to], pieces[i][to])
            for i in range(len(group))
        ]
        for to in range(len(group))
    ]
