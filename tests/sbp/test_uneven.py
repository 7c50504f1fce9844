"""Along an axis with shares: layouts, every rule, paths, and their bytes."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cost.collectives import CommModel
from autoddl.sbp.collectives import legal_steps, path_bytes, work_of
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
        ((2, 1, (3, 0)), "positive whole numbers"),
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
        pytest.param((2, 1, 1), 3, id="some"),
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
    table = PathTable(mesh, CommModel(cluster_of(mesh)).price)
    steps = table.path(float_spec(shape), source, target)
    whole = whole_of(shape)
    shards = scatter(whole, source, mesh, np.random.default_rng(seed))
    after, _ = run_steps(shards, steps, source, mesh)
    check_arrived(after, target, mesh, whole)


def cluster_of(mesh):
    return cluster("gcp_a100", mesh.nodes, mesh.gpus_per_node).with_shares(mesh.shares)


@given(placed(), st.data())
@settings(max_examples=60)
def test_bytes_are_those_of_pieces_filled_up_to_the_largest(drawn, data):
    """What the runtime sends: of p devices each sends p - 1 pieces as large as the largest."""
    mesh, shape, nd = drawn
    step = data.draw(st.sampled_from(list(legal_steps(nd, len(shape)))))
    work, spec = work_of(step, mesh), float_spec(shape)
    (_, before, after) = path_bytes(spec, [step], nd, mesh)[0]
    p, rounds = mesh.extent(step.axes), {"all_reduce": 2}.get(step.kind, 1)
    if step.kind in ("all_gather", "reduce_scatter"):
        expected = (p - 1) * min(before, after)
    elif step.kind == "all_to_all":
        expected = (p - 1) * before / np.prod([mesh.parts[a] for a in step.axes])
    else:
        expected = 0 if step.is_free else rounds * (p - 1) / p * before
    assert work.device * max(before, after) == pytest.approx(expected)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("ndim", [1, 2])
def test_no_path_falls_below_its_bound(mesh, ndim):
    price = CommModel(cluster_of(mesh)).price
    spec = TensorSpec((int(np.prod(mesh.units)) * 4,) * ndim)
    rng = np.random.default_rng(0)
    codes = rng.integers(-2, ndim, (2, 40, mesh.num_axes)).astype(np.int8)
    exact = PathTable(mesh, price).seconds(spec, *codes)
    bound = PathBounds(mesh, price).seconds(spec, *codes)
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
