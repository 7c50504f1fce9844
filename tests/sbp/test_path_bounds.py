"""Bounds of path prices against true shortest paths, on all meshes of at most four axes.

The bounds (`sbp.counted`) leave steps out that others replace, and follow the phases of a path in
one order, where the prices allow it. Whether they still hold is not argued for a new collective: it
is compared with the shortest paths along `legal_steps`, the definition, for every entry of the
table and for a second algorithm of each.
"""

import dataclasses
import functools
import itertools
import math
import zlib

import numpy as np
import pytest

from autoddl.cost.comm import CommModel
from autoddl.sbp.collectives import COLLECTIVES, Work, legal_steps
from autoddl.sbp.counted import Counted
from autoddl.sbp.layout import TensorSpec, num_shards
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.redistribute import PathTable
from tests.clusters import cluster

# every mesh of one to four axes of extents 2 and 3, between the nodes and inside them
MESHES = [
    Mesh(math.prod(inter), math.prod(intra))
    for axes in range(1, 5)
    for between in range(axes + 1)
    for inter in itertools.combinations_with_replacement((2, 3), between)
    for intra in itertools.combinations_with_replacement((2, 3), axes - between)
]
SENDING = [entry.name for entry in COLLECTIVES.sending]


@dataclasses.dataclass(frozen=True)
class Scaled:
    """The default way of a collective with other messages and bytes."""

    name: str
    messages: float
    bytes: float

    def __call__(self, nodes, gpus, groups):
        default = COLLECTIVES[self.name].work
        assert default is not None
        work = default(nodes, gpus, groups)
        return Work(
            self.messages * work.messages,
            self.bytes * work.nic,
            self.bytes * work.device,
            work.shuffled,
        )


def table(*others):
    """The collectives with a second algorithm of some: (name, times the messages, the bytes)."""
    found = COLLECTIVES
    for name, messages, size in others:
        found = found.with_algorithm(name, "other", Scaled(name, messages, size))
    return found


# few messages of more bytes, many of fewer, and what no step of other collectives replaces
TABLES = {
    "default": table(),
    **{f"{name} in few messages": table((name, 0.2, 4.0)) for name in SENDING},
    **{f"{name} of few bytes": table((name, 5.0, 0.2)) for name in SENDING},
    **{f"cheap {name}": table((name, 0.01, 0.01)) for name in SENDING},
    "all in few messages": table(*((name, 0.1, 3.0) for name in SENDING)),
}


@functools.cache
def legal(num_axes, ndim):
    """All states, and all legal steps: (source row, target row, name, axes) each."""
    labels = (P, B, *map(S, range(ndim)))
    states = [NdSbp(nd) for nd in itertools.product(labels, repeat=num_axes)]
    row = {nd: number for number, nd in enumerate(states)}
    steps = [
        (row[nd], row[step.apply(nd)], step.kind, step.axes)
        for nd in states
        for step in legal_steps(nd, ndim)
    ]
    return states, steps


def shortest(mesh, spec, price, collectives):
    """[states, states] seconds of the cheapest path, by Floyd and Warshall's algorithm."""
    states, steps = legal(mesh.num_axes, len(spec.shape))
    held = [spec.bytes / num_shards(nd, mesh) for nd in states]
    ways = {
        e.name: [w for w in collectives.entries if w.name == e.name] for e in COLLECTIVES.entries
    }
    prices = {
        (name, axes): [(0.0, 0.0) if w.is_local else price(w.way, axes) for w in ways[name]]
        for name, axes in {step[2:] for step in steps}
    }
    seconds = np.full((len(states), len(states)), np.inf)
    np.fill_diagonal(seconds, 0.0)
    for source, target, name, axes in steps:
        size = max(held[source], held[target])
        least = min(alpha_s + s_per_byte * size for alpha_s, s_per_byte in prices[name, axes])
        seconds[source, target] = min(seconds[source, target], least)
    for middle in range(len(states)):
        np.minimum(seconds, seconds[:, middle, None] + seconds[middle], out=seconds)
    return np.array([nd.codes for nd in states], dtype=np.int8), seconds


def check(mesh, spec, price, collectives):
    """Bounds and prices of all pairs; whether the bounds follow the phases in one order."""
    codes, exact = shortest(mesh, spec, price, collectives)
    counted = Counted(mesh, price, collectives)
    bound = counted.seconds(spec, codes, codes)
    assert (bound <= exact * (1 + 1e-9)).all()
    found = PathTable(mesh, price, collectives).seconds(spec, codes, codes)
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    return bound, exact, len(counted._graph(len(spec.shape)).phases) > 1


def machine(mesh, latency, collectives=COLLECTIVES):
    """Links of `latency` times a machine's own."""
    where = cluster("gcp_a100", mesh.nodes, mesh.gpus_per_node)
    inter, intra = (
        dataclasses.replace(link, alpha_s=latency * link.alpha_s)
        for link in (where.inter, where.intra)
    )
    return dataclasses.replace(where, inter=inter, intra=intra, collectives=collectives)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ndim", [1, 2])
def test_no_path_falls_below_the_bound_whatever_the_table(name, ndim):
    """A third of the meshes with each latency; of four axes, other tables meet a quarter."""
    spec = TensorSpec((1296,) * ndim, "float32")
    number = list(TABLES).index(name)
    for place, mesh in enumerate(MESHES):
        latency = (1e-3, 1.0, 1e3)[(place + number) % 3]
        if mesh.num_axes < 4 or name == "default" or (place + number) % 4 == 0:
            price = CommModel(machine(mesh, latency, TABLES[name])).price
            check(mesh, spec, price, TABLES[name])


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_no_path_falls_below_the_bound_at_any_price(mesh):
    """Prices without sense, that depend on extents and links only: then nothing may be left out."""
    for seed, collectives in enumerate((TABLES["default"], TABLES["all in few messages"])):

        def price(way, axes, seed=seed):
            mixed = zlib.crc32(repr((seed, way, mesh.topology(axes), len(axes))).encode())
            return mixed % 31 * 1e-6, mixed // 31 % 1009 * 1e-12

        check(mesh, TensorSpec((1296,), "float32"), price, collectives)


@pytest.mark.parametrize("latency", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("mesh", [Mesh(4, 4), Mesh(16, 1), Mesh(6, 6), Mesh(1, 8)], ids=str)
def test_the_table_allows_the_order_of_phases(mesh, latency):
    """The reduction is on where it is meant to be."""
    price = CommModel(machine(mesh, latency)).price
    _, _, in_phases = check(mesh, TensorSpec((1296, 1296)), price, COLLECTIVES)
    assert in_phases


def test_what_breaks_the_order_switches_the_phases_off():
    """An all-reduce that is cheaper than its two halves has no place in the phases."""
    mesh, collectives = Mesh(4, 2), TABLES["cheap all_reduce"]
    price = CommModel(machine(mesh, 1.0, collectives)).price
    bound, exact, in_phases = check(mesh, TensorSpec((1296, 1296)), price, collectives)
    assert not in_phases
    without, _, _ = check(
        mesh, TensorSpec((1296, 1296)), CommModel(machine(mesh, 1.0)).price, COLLECTIVES
    )
    assert (bound <= without * (1 + 1e-6)).all() and (bound < 0.9 * without).any()
    assert (exact < np.inf).all()
