"""Layouts: shards partition the tensor, balanced at each level of a nested split."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoddl.sbp.layout import (
    TensorSpec,
    balanced_range,
    check_fits,
    is_even,
    local_shape,
    local_slices,
)
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S

from .strategies import MESHES, placed_tensors


def sizes(shape, nd, mesh, dim=0):
    nd = NdSbp.parse(nd)
    return [local_shape(shape, nd, mesh, rank)[dim] for rank in range(mesh.size)]


def test_ten_rows_nested_and_flat():
    assert sizes((10,), "(S0, S0)", Mesh(2, 2)) == [3, 2, 3, 2]
    assert sizes((10,), "(S0, B)", Mesh(2, 2)) == [5, 5, 5, 5]
    # Four in one go, as OneFlow splits 10 over four devices.
    assert [b - a for a, b in (balanced_range(0, 10, 4, i) for i in range(4))] == [3, 3, 2, 2]
    assert sizes((10,), "(S0)", Mesh(3, 1)) == [4, 3, 3]
    assert sizes((2,), "(S0, S0)", Mesh(2, 2)) == [1, 0, 1, 0]


def test_the_earlier_axis_is_the_major_one():
    nd, mesh = NdSbp.parse("(S0, S0)"), Mesh(2, 2)
    assert [local_slices((8,), nd, mesh, r)[0].start for r in range(4)] == [0, 2, 4, 6]
    assert [local_slices((8,), NdSbp.of(B, S(0)), mesh, r)[0].start for r in range(4)] == [0, 4] * 2


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 9))
def test_balanced_pieces_follow_each_other_largest_first(start, length, parts):
    ranges = [balanced_range(start, start + length, parts, i) for i in range(parts)]
    assert [low for low, _ in ranges] == [start, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == start + length
    lengths = [high - low for low, high in ranges]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@given(placed_tensors())
def test_shards_partition_the_tensor(placed):
    mesh, shape, nd = placed
    counts = np.zeros(shape, dtype=int)
    for rank in range(mesh.size):
        slices = local_slices(shape, nd, mesh, rank)
        counts[slices] += 1
        assert counts[slices].shape == local_shape(shape, nd, mesh, rank)
    copies = mesh.extent(a for a, p in enumerate(nd) if not p.is_split)
    assert (counts == copies).all()


@given(placed_tensors())
def test_rank_zero_holds_the_most_and_even_means_all_alike(placed):
    mesh, shape, nd = placed
    shapes = [local_shape(shape, nd, mesh, rank) for rank in range(mesh.size)]
    assert all(a <= b for s in shapes for a, b in zip(s, shapes[0], strict=True))
    assert is_even(shape, nd, mesh) == (len(set(shapes)) == 1)


@given(st.sampled_from(MESHES), st.integers(1, 4))
def test_neighbouring_axes_merge_where_the_split_is_even(mesh, rows):
    """All axes as one of the mesh's size: equal for even splits."""
    shape, nd = (rows * mesh.size,), NdSbp((S(0),) * mesh.num_axes)
    merged = [balanced_range(0, shape[0], mesh.size, rank) for rank in range(mesh.size)]
    nested = [local_slices(shape, nd, mesh, rank)[0] for rank in range(mesh.size)]
    assert [(s.start, s.stop) for s in nested] == merged


def test_even_needs_every_dim():
    mesh = Mesh(2, 3)
    assert is_even((6, 5), NdSbp.of(S(0), S(0)), mesh)
    assert is_even((2, 3), NdSbp.of(S(0), S(1)), mesh)
    assert not is_even((3, 3), NdSbp.of(S(0), S(1)), mesh)
    assert is_even((1, 1), NdSbp.of(P, B), mesh)
    assert not is_even((6,), NdSbp.of(S(0), S(1)), mesh)  # there is no dim 1


@pytest.mark.parametrize(
    ("nd", "message"),
    [
        ("(S0)", r"\(S0\) has 1 axes, the mesh 2x2 has 2"),
        ("(B, S2)", r"splits dim 2 on axis 1, but the shape \(4, 4\) has 2 dims"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(nd, message):
    with pytest.raises(ValueError, match=message):
        check_fits((4, 4), NdSbp.parse(nd), Mesh(2, 2))
    with pytest.raises(ValueError, match=message):
        local_slices((4, 4), NdSbp.parse(nd), Mesh(2, 2), 0)


def test_spec():
    spec = TensorSpec((3, 4), "float16")
    assert (spec.numel, spec.item_bytes, spec.bytes, spec.is_float) == (12, 2, 24, True)
    assert str(spec) == "float16[3, 4]"
    assert not TensorSpec((), "int64").is_float and TensorSpec(()).bytes == 4
    assert TensorSpec((1,), "bfloat16").is_float
    with pytest.raises(ValueError, match="unknown dtype 'float8'; known: float64"):
        TensorSpec((1,), "float8")
    with pytest.raises(ValueError, match=r"no negative sizes: \(2, -1\)"):
        TensorSpec((2, -1))


def test_every_two_levels_are_the_pieces_of_pieces():
    for n, outer, inner in itertools.product(range(12), (2, 3), (2, 3)):
        mesh = Mesh(outer, inner)
        for rank in range(mesh.size):
            first, second = mesh.coords(rank)
            low, high = balanced_range(*balanced_range(0, n, outer, first), inner, second)
            assert local_slices((n,), NdSbp.of(S(0), S(0)), mesh, rank) == (slice(low, high),)
