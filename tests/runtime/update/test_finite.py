"""One number tells whether all elements of all tensors are finite."""

import numpy as np
import pytest

from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.state import ModelState, Stored
from autoddl.runtime.update.finite import health, looked_at
from autoddl.sbp.layout import local_slices
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from tests.exactness.numpy_backend import NumPy, World


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [(100.0, True), (-6e4, True), (np.inf, False), (-np.inf, False), (np.nan, False)],
)
def test_elements_count_and_not_their_sum(dtype, value, expected):
    """Sums of float16 are soon infinite: 100 times 1,000."""
    same, one = np.full(1000, value, dtype), np.ones(3, dtype)
    opposite = np.concatenate([same, -same])
    with np.errstate(invalid="ignore"):
        for tensors in ([one, same], [opposite]):
            (found,) = health(tensors, NumPy(World(1), 0))
            assert np.isfinite(found) == expected


def test_nothing_is_finite():
    assert health([], NumPy(World(1), 0)).tolist() == [0.0]


def test_each_part_of_a_gradient_is_looked_at_by_one_of_the_ranks_that_have_it():
    mesh, shape, world = Mesh(2, 2), (4, 4), World(4)
    texts = ["(B, B)", "(S0, B)", "(B, S1)", "(S0, S0)", "(B, B)", "(B, B)", "(B, B)", "(S1, B)"]
    places = {f"p{n}": NdSbp.parse(text) for n, text in enumerate(texts)}
    seen = []
    for rank in range(4):
        state = ModelState(Groups(mesh, rank, NumPy(world, rank)), {})
        for name, nd in places.items():
            state.stored[name] = Stored(shape, "float32", nd, None, parameter=name)
        own = looked_at(state)
        seen += [(name, str(local_slices(shape, places[name], mesh, rank))) for name in own]
    every = {
        (name, str(local_slices(shape, nd, mesh, rank)))
        for name, nd in places.items()
        for rank in range(4)
    }
    assert sorted(seen) == sorted(every)
