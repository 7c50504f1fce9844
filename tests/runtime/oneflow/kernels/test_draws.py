"""Draws: their distribution, and that shards draw apart and replicas alike."""

import numpy as np
import pytest

from autoddl.runtime.kernel import ByInput, Explicit, RunState
from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, S
from tests.runtime.oneflow.trace.evaluate import context

flow = pytest.importorskip("oneflow", reason="needs OneFlow")
SHAPE = (64, 64)
MESH, SPLIT = Mesh(2, 2), NdSbp((S(0), B))
# kind: attributes, mean, standard deviation, least and greatest
DRAWS = {
    "uniform": ({"from": -1.0, "to": 3.0, "shape": SHAPE}, 1.0, 4 / 12**0.5, -1.0, 3.0),
    "uniform_int": ({"from": 2, "to": 5, "shape": SHAPE}, 3.0, (2 / 3) ** 0.5, 2, 4),
    "normal": ({"mean": 1.0, "std": 2.0, "shape": SHAPE}, 1.0, 2.0, -12.0, 14.0),
    "exponential": ({"lambd": 0.5, "out_shape": SHAPE}, 2.0, 2.0, 0.0, 60.0),
    "bernoulli": ({"p": 0.25}, 0.25, (0.25 * 0.75) ** 0.5, 0, 1),
}


def kernel_outputs(kind, made, inputs, attrs):
    result = KERNELS[kind](made, inputs, attrs)
    assert not isinstance(result, Explicit | ByInput)
    return result


def drawn(kind, attrs, rank=0, **state):
    attrs = {"dtype": "int64" if kind == "uniform_int" else "float32", **attrs}
    inputs = [flow.ones(*SHAPE) * 0.25] if kind == "bernoulli" else []
    state = RunState(3, **state)
    shapes = [SHAPE] * len(inputs)
    made = context(kind, attrs, *shapes, out=SHAPE, mesh=MESH, nd=SPLIT, rank=rank, state=state)
    (result,) = kernel_outputs(kind, made, inputs, attrs)
    assert result.dtype == getattr(flow, attrs["dtype"])
    return result.numpy()


@pytest.mark.parametrize("kind", DRAWS)
def test_numbers_are_of_their_distribution(kind):
    attrs, mean, spread, least, greatest = DRAWS[kind]
    for given in [attrs, {"p": -1.0}] if kind == "bernoulli" else [attrs]:
        x = drawn(kind, given)
        assert x.shape == SHAPE and least <= x.min() <= x.max() <= greatest
        assert abs(x.mean() - mean) < 5 * spread / 64 and abs(x.std() / spread - 1) < 0.1


@pytest.mark.parametrize("kind", DRAWS)
def test_shards_draw_apart_and_replicas_alike(kind):
    attrs = DRAWS[kind][0]
    first = drawn(kind, attrs)
    np.testing.assert_array_equal(first, drawn(kind, attrs, rank=1))
    for other in (drawn(kind, attrs, rank=2), drawn(kind, attrs, step=1)):
        assert np.any(first != other)


def test_a_permutation_has_every_number_once():
    made = context("randperm", {"n": 12}, out=(12,), mesh=MESH, nd=NdSbp((B, B)), rank=3)
    (result,) = kernel_outputs("randperm", made, [], {"n": 12})
    assert sorted(result.numpy()) == list(range(12)) and result.dtype == flow.int32
