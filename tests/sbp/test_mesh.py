"""The mesh of atomic axes: factors, ranks, groups, link classes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.sbp.mesh import Mesh, prime_factors

MESH = st.builds(Mesh, st.integers(1, 12), st.integers(1, 12))


@given(st.integers(1, 5000))
def test_factors_are_primes_in_ascending_order(n):
    factors = prime_factors(n)
    assert math.prod(factors) == n
    assert list(factors) == sorted(factors)
    assert all(f % d for f in factors for d in range(2, f))


def test_node_axes_come_first():
    mesh = Mesh(6, 4)
    assert [str(axis) for axis in mesh.axes] == ["2n", "3n", "2g", "2g"]
    assert mesh.size == 24 and str(mesh) == "6x4"
    assert Mesh(1, 1).axes == ()


@given(MESH)
def test_ranks_are_row_major(mesh):
    every = [mesh.coords(rank) for rank in range(mesh.size)]
    assert every == sorted(every)
    assert [mesh.rank(coords) for coords in every] == list(range(mesh.size))


@given(MESH)
def test_the_node_axes_alone_say_on_which_node_a_rank_is(mesh):
    node_axes = sum(axis.link == "inter" for axis in mesh.axes)
    for rank in range(mesh.size):
        node = 0
        for extent, coord in zip(mesh.extents[:node_axes], mesh.coords(rank), strict=False):
            node = node * extent + coord
        assert node == rank // mesh.gpus_per_node


@given(MESH, st.data())
def test_groups_along_axes_partition_the_ranks(mesh, data):
    axes = data.draw(st.sets(st.sampled_from(range(mesh.num_axes)))) if mesh.num_axes else set()
    groups = {mesh.group(rank, axes) for rank in range(mesh.size)}
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    assert all(list(group) == sorted(group) for group in groups)
    nodes, gpus = mesh.topology(axes)
    for group in groups:
        assert len(group) == mesh.extent(axes) == nodes * gpus
        assert len({rank // mesh.gpus_per_node for rank in group}) == nodes
        kept = {tuple(c for a, c in enumerate(mesh.coords(r)) if a not in axes) for r in group}
        assert len(kept) == 1


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (-2, 4)])
def test_a_mesh_needs_devices(shape):
    with pytest.raises(ValueError, match="at least one node and one GPU"):
        Mesh(*shape)


def test_a_rank_outside_is_refused():
    with pytest.raises(ValueError, match="rank 4 is not in a mesh of 4"):
        Mesh(2, 2).coords(4)
