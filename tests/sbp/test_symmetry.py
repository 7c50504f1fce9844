"""Equal prices of renamed and of dual paths."""

import numpy as np
from hypothesis import given, settings

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.redistribute import PathTable
from autoddl.sbp.states import core_codes
from autoddl.sbp.symmetry import alike_dims, dual, first_names, rename

from .strategies import float_spec, odd_price, placed_tensors, ring_price


def codes_of(*texts):
    return np.stack([NdSbp.parse(text).codes for text in texts])


def test_dims_are_alike_if_the_same_parts_divide_them():
    mesh = Mesh(4, 3)
    assert alike_dims((8, 24, 4, 12, 16), mesh) == ((0, 2, 4), (1, 3))
    assert alike_dims((5,), mesh) == ()


def test_the_first_split_dim_gets_the_first_name():
    codes = codes_of("(S2, B, S0, P)", "(S1, S2, S0, S1)", "(B, P, B, B)")
    names = first_names(codes, 3, ((0, 2),))
    renamed = [str(NdSbp.from_codes(row)) for row in rename(codes, names)]
    assert renamed == ["(S0, B, S2, P)", "(S1, S0, S2, S1)", "(B, P, B, B)"]


def test_dual_swaps_partial_and_broadcast():
    codes = codes_of("(S1, B, P)")
    assert (dual(codes) == codes_of("(S1, P, B)")).all()
    assert (dual(dual(codes)) == codes).all()


@given(placed_tensors(count=4, even=True))
@settings(max_examples=40)
def test_dual_paths_cost_the_same(placed):
    mesh, shape, *nds = placed
    spec, table = float_spec(shape), PathTable(mesh, ring_price(mesh))
    codes = np.stack([nd.codes for nd in nds])
    assert table.has_duals(spec, codes)
    seconds = table.seconds(spec, codes[:2], codes[2:])
    mirrored = table.seconds(spec, dual(codes[2:]), dual(codes[:2])).T
    np.testing.assert_allclose(mirrored, seconds, rtol=1e-9, atol=1e-15)


def test_the_core_of_a_large_mesh_has_duals_and_renamings():
    """Eight axes: too many states to have all, and no search knows of the symmetries."""
    for mesh in (Mesh(256, 1), Mesh(64, 4)):
        table = PathTable(mesh, ring_price(mesh))
        core = core_codes(mesh, 3)
        spec = TensorSpec((4096, 512, 256))
        rng = np.random.default_rng(1)
        sources, targets = (core[rng.choice(len(core), 12)] for _ in range(2))
        plain = np.concatenate(
            [table.seconds(spec, sources[i : i + 1], targets, backwards=False) for i in range(12)]
        )
        turned = np.array([2, 0, 1], dtype=np.int8)
        for other in (
            table.seconds(spec, rename(sources, turned), rename(targets, turned)),
            table.seconds(spec, dual(targets), dual(sources)).T,
            table.seconds(spec, sources, targets, backwards=True),
        ):
            np.testing.assert_allclose(other, plain, rtol=1e-9)


def test_prices_without_sense_have_no_duals():
    mesh = Mesh(2, 2)
    spec = float_spec((4, 4))
    assert not PathTable(mesh, odd_price(mesh, 3)).has_duals(spec)
    assert not PathTable(mesh, ring_price(mesh)).has_duals(TensorSpec((4, 4), "int64"))
