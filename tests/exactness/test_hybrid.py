"""Whale's hybrid on OneFlow: a library's ResNet-50, hinted from outside, trains as alone."""

import json
from pathlib import Path

import pytest

from autoddl.plans import Plan

WORKER = Path(__file__).parent / "hybrid.py"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_resnet50_with_a_large_classifier_trains_by_its_hints(jobs, tmp_path):
    pytest.importorskip("oneflow", reason="needs OneFlow")
    path = tmp_path / "plan.json"
    status, out = jobs.run(WORKER, 4, str(path), timeout=380, prefix=False)
    assert status == 0, out
    found = json.loads(out.splitlines()[-1])
    # of BatchNorm's statistics, which are compared too, OneFlow has the momentum in float32
    assert found["losses"] <= 1e-8 and found["parameters"] <= 1e-6, found

    plan = Plan.load(path)
    plan.verify()
    ops, mesh = plan.stage.ops, plan.stage.mesh
    features = [op for op in plan.graph.ops if op.kind in ("conv2d", "normalization")]
    assert len(features) == 2 * 53 and mesh.size == 4
    for op in features:
        rows, weight = ops[op.name].ins[0], ops[op.name].ins[1]
        assert all(p.is_split and p.dim == 0 for p in rows), op.name
        assert not any(p.is_split for p in weight), op.name
    (product,) = (op for op in plan.graph.ops if op.module == "fc" and "matmul" in op.kind)
    assert all(p.is_split for p in ops[product.name].ins[1])
