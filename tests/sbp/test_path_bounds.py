"""Bounds of path prices against true shortest paths, on all meshes of at most four axes.

Whether the bounds hold is not argued for a new collective: they are compared with
the shortest paths along `legal_steps`, the definition, for every entry of the table and for a
second algorithm of each.
"""

import dataclasses
import functools
import itertools
import math
import zlib

import numpy as np
import pytest

from autoddl.cost.collectives import CommModel
from autoddl.sbp.collectives import COLLECTIVES, Work, legal_steps
from autoddl.sbp.layout import TensorSpec, num_shards
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.path_bounds import PathBounds
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
    """Compare the bounds and prices of all pairs."""
    codes, exact = shortest(mesh, spec, price, collectives)
    bounds = PathBounds(mesh, price, collectives)
    bound = bounds.seconds(spec, codes, codes)
    assert (bound <= exact * (1 + 1e-9)).all()
    found = PathTable(mesh, price, collectives).seconds(spec, codes, codes)
    np.testing.assert_allclose(found, exact, rtol=1e-9)


def machine(mesh, latency, collectives=COLLECTIVES):
    """Links of `latency` times a machine's own."""
    where = cluster("gcp_a100", mesh.nodes, mesh.gpus_per_node)
    inter, intra = (
        dataclasses.replace(link, alpha_s=latency * link.alpha_s)
        for link in (where.inter, where.intra)
    )
    return dataclasses.replace(where, inter=inter, intra=intra, collectives=collectives)


@pytest.mark.parametrize(
    ("name", "ndim"),
    [
        pytest.param(name, ndim, marks=pytest.mark.full if ndim == 2 and name != "default" else ())
        for name in TABLES
        for ndim in (1, 2)
    ],
)
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


# ---- on larger meshes, for some states


def states(rng, count, axes, ndim):
    """Some of long runs, as strategies have them, and some of any labels."""
    runs = np.sort(rng.integers(0, axes + 1, (count, 2)), axis=1)
    labels = rng.integers(-2, ndim, (count, 3))
    place = (np.arange(axes) >= runs[:, :1]).astype(int) + (np.arange(axes) >= runs[:, 1:])
    simple = np.take_along_axis(labels, place, axis=1)
    return np.concatenate([simple, rng.integers(-2, ndim, (count, axes))]).astype(np.int8)


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "shape", "dtype"),
    [
        ("piz_daint", 8, 1, (64, 48), "float32"),
        (
            "piz_daint",
            64,
            1,
            (32, 8, 64),
            "float32",
        ),  # all of the quotient, a core of the states
        ("gcp_a100", 64, 4, (32, 64, 64), "float32"),  # those of the core, and what is asked for
        ("gcp_a100", 12, 6, (144, 40), "float32"),
        ("laptop", 8, 4, (64, 12), "float16"),
        ("gcp_a100", 8, 2, (64, 32), "int64"),
        ("gcp_a100", 4, 4, (), "float32"),
    ],
)
def test_no_path_falls_below_the_bound(machine, nodes, gpus, shape, dtype):
    where, spec = cluster(machine, nodes, gpus), TensorSpec(shape, dtype)
    price = CommModel(where).price
    rng = np.random.default_rng(0)
    bounds, table = PathBounds(where.mesh, price), PathTable(where.mesh, price)
    for _ in range(3):  # the later ones ask for states that the graph of the first may not have
        sources, targets = (states(rng, 12, where.mesh.num_axes, len(shape)) for _ in range(2))
        exact = table.seconds(spec, sources, targets)
        bound = bounds.seconds(spec, sources, targets)
        assert np.isfinite(bound[np.isfinite(exact)]).all()
        assert (bound <= exact * (1 + 1e-9)).all()
        rows = bounds.row_seconds(spec, sources, targets)
        assert (rows <= np.diagonal(exact) * (1 + 1e-9)).all()
        assert np.isfinite(exact).any()
        assert (bound[np.isfinite(bound)] > 0).any()


@pytest.mark.parametrize("shape", [(36, 24), (60, 12, 4)])
def test_without_equal_axes_most_bounds_are_prices(shape):
    """On axes of extents 2 and 3 nothing is forgotten but the order in which splits nest."""
    where, spec = cluster("piz_daint", 6, 1), TensorSpec(shape, "float32")
    price = CommModel(where).price
    codes = np.array([(a, b) for a in range(-2, len(shape)) for b in range(-2, len(shape))])
    codes = codes.astype(np.int8)
    exact = PathTable(where.mesh, price).seconds(spec, codes, codes)
    bound = PathBounds(where.mesh, price).seconds(spec, codes, codes)
    finite = np.isfinite(exact)
    assert (bound[finite] <= exact[finite] * (1 + 1e-9)).all()
    same = np.isclose(bound[finite], exact[finite], rtol=1e-5, atol=0)
    assert 0.7 < same.mean() < 1  # the rest reorders a nested split


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus", "shapes"),
    [
        ("piz_daint", 64, 1, [(64, 128), (512, 64), (24, 64)]),
        ("gcp_a100", 64, 4, [(256, 512, 512), (1024, 1024, 256), (32, 256, 6)]),
    ],
)
def test_one_search_for_all_sizes_finds_what_each_finds(machine, nodes, gpus, shapes):
    where = cluster(machine, nodes, gpus)
    price, axes = CommModel(where).price, where.mesh.num_axes
    rng = np.random.default_rng(1)
    asked = [
        (TensorSpec(shape, dtype), *(states(rng, 9, axes, len(shape)) for _ in range(2)))
        for shape in shapes
        for dtype in ("float32", "int64")
    ]
    together = PathBounds(where.mesh, price)
    for question in asked:
        together.ask(*question)
    for question in asked:
        alone = PathBounds(where.mesh, price)
        for spec, sources, targets in asked:  # the same states, and so the same graph
            alone.seconds(TensorSpec(spec.shape, "float16"), sources, targets)
        found = together.seconds(*question)
        np.testing.assert_allclose(found, alone.seconds(*question), rtol=1e-5)
        rows = together.row_seconds(*question)
        np.testing.assert_allclose(rows, np.diagonal(found))


def test_dims_that_divide_alike_may_swap_names():
    where, spec = cluster("gcp_a100", 16, 4), TensorSpec((64, 128, 256), "float32")
    bounds = PathBounds(where.mesh, CommModel(where).price)
    sources, targets = (states(np.random.default_rng(2), 12, 6, 3) for _ in range(2))
    found = bounds.seconds(spec, sources, targets)
    assert np.isfinite(found).any()
    for names in ([1, 0, 2], [2, 1, 0], [1, 2, 0]):
        labels = np.array([*names, -2, -1], dtype=np.int8)  # P and B stay
        renamed = [labels[codes] for codes in (sources, targets)]
        swapped = PathBounds(where.mesh, CommModel(where).price).seconds(spec, *renamed)
        np.testing.assert_allclose(swapped, found, rtol=1e-5)


@pytest.mark.parametrize(
    ("machine", "nodes", "gpus"), [("gcp_a100", 8, 4), ("gcp_a100", 12, 6), ("laptop", 8, 4)]
)
def test_no_path_falls_below_the_bound_where_dims_stay_whole(machine, nodes, gpus):
    """A path may split a dim that neither its start nor its end splits."""
    where, spec = cluster(machine, nodes, gpus), TensorSpec((24, 72, 6, 144), "float32")
    price = CommModel(where).price
    rng = np.random.default_rng(4)
    sources, targets = (states(rng, 12, where.mesh.num_axes, 4) for _ in range(2))
    bounds, table = PathBounds(where.mesh, price), PathTable(where.mesh, price)
    for whole in ((1, 2, 3), (1,), (0, 3), (0, 1, 2, 3)):
        some = [np.where(np.isin(codes, whole), np.int8(-1), codes) for codes in (sources, targets)]
        exact, bound = table.seconds(spec, *some), bounds.seconds(spec, *some)
        assert np.isfinite(exact).any()
        assert (bound <= exact * (1 + 1e-9)).all()
