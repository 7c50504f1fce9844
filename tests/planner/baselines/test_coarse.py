"""Shortest paths on the coarse meshes against all sums of steps."""

import numpy as np
import pytest

from autoddl.planner.baselines.coarse import shortest


@pytest.mark.parametrize("seed", range(5))
def test_shortest_paths_are_the_least_of_all(seed):
    rng = np.random.default_rng(seed)
    steps = np.where(rng.random((3, 12, 12)) < 0.2, rng.random((3, 12, 12)), np.inf)
    steps[:, np.arange(12), np.arange(12)] = 0.0
    steps[0, 4] = steps[0, :, 4] = np.inf  # a state that one topology does not have
    every = steps
    for _ in range(12):
        every = (every[:, :, :, None] + steps[:, None]).min(axis=2)
    sources = rng.permutation(12)[:5]
    assert shortest(steps, sources) == pytest.approx(every[:, sources], rel=1e-12)
    assert np.isinf(shortest(steps, np.array([4]))[0]).all()
