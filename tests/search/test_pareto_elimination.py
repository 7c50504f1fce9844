"""Back from a chosen pair to the pairs that it is the sum of."""

import numpy as np
import pytest

from autoddl.search.pareto_elimination import _decompose


def front(rng: np.random.Generator, size: int) -> np.ndarray:
    """The more memory, the less cost; a single pair may have none of either."""
    cost, memory = np.sort(rng.random((2, size)))
    pairs = np.stack([cost[::-1], memory], axis=1)
    return pairs if size > 1 else pairs * rng.integers(2, size=2)


@pytest.mark.parametrize("seed", range(50))
def test_a_sum_is_taken_apart(seed):
    rng = np.random.default_rng(seed)
    options = [
        (name, [front(rng, int(rng.integers(1, 9))) for _ in range(3)])
        for name in range(int(rng.integers(1, 6)))
    ]
    _, parts = options[int(rng.integers(len(options)))]
    whole = sum((part[rng.integers(len(part))] for part in parts), np.zeros(2))
    name, picked = _decompose(whole, options)
    for (number, pair), part in zip(picked, options[name][1], strict=True):
        assert (part[number] == pair).all()
    assert sum(pair for _, pair in picked) == pytest.approx(whole)
