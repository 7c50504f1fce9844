"""The recipe of docs/architecture.md: an operator with rule, facets and kernel, from outside."""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

from autoddl.runtime.jobs.launch import run_processes
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import prove
from autoddl.sbp.signature import RULES, OpSpec, signatures_of

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("running_product.py")


@pytest.fixture
def kind():
    """The operator's kind, whose rule is there during a test."""
    kind = runpy.run_path(str(SCRIPT))["KIND"]
    yield kind
    del RULES[kind]


def kernel(inputs, attrs, shard):
    """The operator in NumPy, and from the gradient of its output that of its input."""
    (x,), dim = inputs, attrs["dim"]
    y = np.cumprod(x, dim)
    return [y], lambda grads: [np.flip(np.cumsum(np.flip(grads[0] * y, dim), dim), dim) / x]


@pytest.mark.parametrize("shape, dim", [((4, 6), 1), ((4, 6, 2), 0)])
def test_its_rule_is_proven(kind, shape, dim):
    op = OpSpec(kind, {"dim": dim}, (TensorSpec(shape),), (TensorSpec(shape),))
    x = np.random.default_rng(0).uniform(1, 2, shape)
    signatures = list(signatures_of(op))
    assert len(signatures) == len(shape)  # each other dim split, and broadcast
    for signature in signatures:
        prove(op, Mesh(2, 1), (signature,), kernel, [x])


@pytest.mark.full
def test_it_is_trained_like_on_one_device(capfd):
    pytest.importorskip("oneflow", reason="trains with OneFlow")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    assert run_processes([str(SCRIPT)], 4, environment, timeout=200) == 0
    placed = [line for line in capfd.readouterr().out.splitlines() if "placed" in line]
    assert len(placed) == 4 and all("S0" in line for line in placed)
