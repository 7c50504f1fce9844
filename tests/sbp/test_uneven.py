"""Along an axis with shares: layouts, every rule, paths, and their bytes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cluster.link import GroupLine
from autoddl.cost.collectives import CommModel
from autoddl.sbp.collectives import Step, legal_steps, path_bytes, work_of
from autoddl.sbp.layout import TensorSpec, is_even, local_shape, local_slices, shard_bytes
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import fits, scatter
from autoddl.sbp.oracle.paths import run_steps
from autoddl.sbp.path_bounds import PathBounds
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.redistribute import PathTable
from autoddl.sbp.signature import signatures_of
from tests.clusters import cluster

from .operators import CASES
from .proof import check
from .strategies import float_spec, nd_sbps
from .test_paths import check_arrived, whole_of

MESHES = [
    Mesh(*args)
    for args in [
        (2, 1, (3, 1)),
        (2, 2, (2, 1)),
        (4, 1, (1, 3)),
        (3, 2, (2, 1, 1)),
        (4, 2, (5, 2, 1, 1)),
        (2, 2, (1, 1)),
        (4, 1, (2, 1, 0, 1)),
    ]
]


def sizes(shape, nd, mesh):
    return [local_shape(shape, NdSbp.parse(nd), mesh, rank)[0] for rank in range(mesh.size)]


def test_a_dim_is_cut_by_the_shares():
    assert sizes((8,), "(S0)", Mesh(2, 1, (3, 1))) == [6, 2]
    assert sizes((8,), "(S0, S0)", Mesh(2, 2, (3, 1))) == [3, 3, 1, 1]
    assert sizes((8,), "(B, S0)", Mesh(2, 2, (3, 1))) == [4, 4, 4, 4]
    assert sizes((9,), "(S0)", Mesh(4, 1, (5, 2, 1, 1))) == [5, 2, 1, 1]
    assert sizes((8,), "(S0, B)", Mesh(4, 1, (3, 1))) == [6, 6, 2, 2]
    assert shard_bytes(TensorSpec((8,)), NdSbp.parse("(S0)"), Mesh(2, 1, (1, 3))) == 24
    # equal shares are none: what they do not divide is divided as on an even axis
    assert sizes((8,), "(S0)", Mesh(3, 1, (1, 1, 1))) == sizes((8,), "(S0)", Mesh(3, 1))
    assert sizes((8,), "(S0)", Mesh(4, 1, (2, 0, 1, 1))) == [4, 0, 2, 2]
    assert sizes((8,), "(S0)", Mesh(4, 1, (1, 0, 1, 1))) == [3, 0, 3, 2]
    assert sizes((8,), "(S0)", Mesh(4, 1, (1, 1, 1, 0))) == [3, 3, 2, 0]
    with pytest.raises(ValueError, match="6 elements cannot be divided 3:1.*multiple of 4"):
        local_slices((6,), NdSbp.parse("(S0)"), Mesh(2, 1, (3, 1)), 0)


def test_a_cut_inside_a_unit_is_not_even():
    """Twelve rows of three heads: by 3:1 they would be cut inside a head."""
    mesh = Mesh(2, 1, (3, 1))
    assert is_even((12,), NdSbp.parse("(S0)"), mesh)
    assert not is_even((3, 4), NdSbp.parse("(S0)"), mesh)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((4, 1, (3, 1, 1)), "3 shares do not divide 4 hosts"),
        ((2, 1, (3, -1)), "whole numbers without"),
        ((2, 1, (1, 0)), "at least two of them not 0"),
        ((2, 1, (2, 4)), "common factor"),
        ((2, 1, (1,)), "1 shares do not divide"),
    ],
)
def test_shares_that_no_mesh_has_are_refused(args, words):
    with pytest.raises(ValueError, match=words):
        Mesh(*args)


EVERY = [(2, 1), (3, 1), (2, 1, 1), (1, 2), (1, 3, 2), (5, 1)]


@pytest.mark.parametrize(
    ("shares", "sample"),
    [
        pytest.param((2, 1, 1), 2, id="some"),
        *(pytest.param(shares, None, marks=pytest.mark.full) for shares in EVERY),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_each_signature_where_it_fits(case, shares, sample):
    mesh = Mesh(len(shares), 1, shares)
    fitting = [s for s in signatures_of(case.op) if fits(case.op, mesh, (s,))]
    for signature in random.Random(0).sample(fitting, min(sample or len(fitting), len(fitting))):
        check(case, mesh, (signature,))


@st.composite
def placed(draw, count=1):
    """(mesh, shape, NdSbps); every dim is a multiple of what the mesh asks for."""
    mesh = draw(st.sampled_from(MESHES))
    unit = int(np.prod(mesh.units))
    shape = tuple(draw(st.sampled_from([unit, 2 * unit])) for _ in range(draw(st.integers(1, 2))))
    return mesh, shape, *(draw(nd_sbps(mesh, len(shape))) for _ in range(count))


@given(placed(count=2), st.integers(0, 9))
@settings(max_examples=60)
def test_a_path_brings_every_element_where_it_belongs(drawn, seed):
    mesh, shape, source, target = drawn
    comm = CommModel(cluster_of(mesh))
    table = PathTable(mesh, comm.price, comm.collectives)
    steps = table.path(float_spec(shape), source, target)
    whole = whole_of(shape)
    shards = scatter(whole, source, mesh, np.random.default_rng(seed))
    after, _ = run_steps(shards, steps, source, mesh)
    check_arrived(after, target, mesh, whole)


def cluster_of(mesh):
    return cluster("gcp_a100", mesh.nodes, mesh.gpus_per_node).with_shares(mesh.shares)


@given(placed(), st.data())
@settings(max_examples=60)
def test_bytes_are_those_that_the_busiest_device_sends(drawn, data):
    """On simulated shards; a ring's pieces are filled up to the largest, which these are not."""
    mesh, shape, nd = drawn
    table = cluster_of(mesh).collectives
    step = data.draw(st.sampled_from(list(legal_steps(nd, len(shape), table))))
    work, spec = work_of(step, mesh, table), float_spec(shape)
    (_, before, after) = path_bytes(spec, [step], nd, mesh)[0]
    larger, p = max(before, after), mesh.extent(step.axes)
    if step.kind in ("all_gather", "reduce_scatter") and not step.algorithm:
        assert work.device * larger == pytest.approx((p - 1) * min(before, after))
        return
    shards = scatter(whole_of(shape), nd, mesh, np.random.default_rng(0))
    _, (network,) = run_steps(shards, [step], nd, mesh)
    devices = max(network.device_bytes.max(), network.sent.sum(axis=0).max())
    nics = network.nic_bytes.max()
    network.sent = network.sent.T
    nics = max(nics, network.nic_bytes.max())
    both = {
        "rel": 0.02,
        "abs": 8 * p * mesh.gpus_per_node,
    }  # whole elements
    assert work.device * larger == pytest.approx(devices, **both)
    assert work.nic * larger == pytest.approx(nics, **both)


SKEWS = [(5, 2, 1, 1), (3, 3, 1, 1), (9, 1, 1, 1), (3, 1), (2, 1, 1, 0)]


@pytest.mark.parametrize("shares", SKEWS, ids=str)
@pytest.mark.parametrize("kind", ["all_gather[balanced]", "reduce_scatter[balanced]", "all_to_all"])
def test_unequal_pieces_in_fewer_bytes(kind, shares):
    """The formulas of `sbp.work`, against messages; and never below what any way takes."""
    mesh = Mesh(len(shares), 1, shares)
    total, size = sum(shares), len(shares)
    text = {"all_g": "S0->B", "reduc": "P->S0", "all_t": "S0->S1"}[kind[:5]]
    step, nd = Step.parse(f"{kind}[0] {text}"), NdSbp.parse("(P)" if "P" in text else "(S0)")
    shape = (4 * total, 8 * total)
    shards = scatter(whole_of(shape), nd, mesh, np.random.default_rng(0))
    _, (network,) = run_steps(shards, [step], nd, mesh)
    moved = max(network.device_bytes.max(), network.sent.sum(axis=0).max())
    part = moved / (8 * np.prod(shape))
    most, least = max(shares) / total, min(shares) / total
    if kind == "all_to_all":
        assert part == pytest.approx(max(n * (total - n) for n in shares) / total**2)
    else:
        assert part == pytest.approx((size - 1) / size + most - 1 / size)
        assert part >= max(most, 1 - least) - 1e-9
    filled_up = (size - 1) * most * (most if kind == "all_to_all" else 1)
    assert part <= filled_up + 1e-9
    comm = CommModel(cluster_of(mesh))
    chosen = comm.cheapest(TensorSpec((2**20 * total, total)), nd, [step])
    default = comm.cheapest(TensorSpec((total, total)), nd, [step])
    assert chosen[0].algorithm == ("balanced" if kind != "all_to_all" and size > 2 else "")
    assert default[0].algorithm == ""


def test_a_measured_ring_prices_what_is_made_equal_for_it():
    line = GroupLine(kind="all_gather", nodes=4, gpus=1, groups=1, latency_s=1.0, s_per_byte=2.0)
    where = replace(cluster("gcp_a100", 4, 1), lines=(line,)).with_shares((5, 2, 1, 1))
    comm = CommModel(where)
    latency_s, s_per_byte = comm.price("all_gather[balanced]", (0,))
    assert latency_s == pytest.approx(1 + 3 * where.inter.alpha_s)
    assert s_per_byte == pytest.approx(2 * (3 / 4 + 5 / 9 - 1 / 4) / (3 / 4))
    assert comm.price("all_gather", (0,)) == pytest.approx((1, 2 * 20 / 9))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("ndim", [1, 2])
def test_no_path_falls_below_its_bound(mesh, ndim):
    comm = CommModel(cluster_of(mesh))
    price, table = comm.price, comm.collectives
    spec = TensorSpec((int(np.prod(mesh.units)) * 4,) * ndim)
    rng = np.random.default_rng(0)
    codes = rng.integers(-2, ndim, (2, 40, mesh.num_axes)).astype(np.int8)
    exact = PathTable(mesh, price, table).seconds(spec, *codes)
    bound = PathBounds(mesh, price, table).seconds(spec, *codes)
    assert np.isfinite(exact).all()
    assert (bound <= exact * (1 + 1e-9)).all()
    assert (bound[exact > 0] > 0).any()


def test_equal_shares_are_an_even_mesh():
    """The same placements cost the same, by whatever of both meshes they are written."""
    even, same = Mesh(2, 2), Mesh(2, 2, (1, 1))
    spec, rng = TensorSpec((16, 16)), np.random.default_rng(1)
    codes = rng.integers(-2, 2, (2, 30, 2)).astype(np.int8)
    one, other = (
        PathTable(mesh, CommModel(cluster_of(mesh)).price).seconds(spec, *codes)
        for mesh in (even, same)
    )
    np.testing.assert_array_equal(one, other)
