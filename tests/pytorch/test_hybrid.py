"""Whale's hybrid: ResNet-50 with a large classifier obeys its two hints, and trains as alone."""

import inspect
import json
from pathlib import Path

import pytest

from autoddl.plans import Plan

WORKER = Path(__file__).parent / "hybrid.py"
FAR = 1e-9  # in double precision


@pytest.mark.full
@pytest.mark.timeout(400)
def test_resnet50_with_a_large_classifier_trains_by_its_hints(torch_jobs, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers")
    from tests.pytorch import hybrid

    plain, lines = (
        inspect.getsource(kind.forward).splitlines() for kind in (hybrid.Plain, hybrid.Hybrid)
    )
    assert len([line for line in lines if line not in plain]) <= 4
    path = tmp_path / "plan.json"
    status, out = torch_jobs.run(WORKER, 4, str(path), timeout=380, prefix=False)
    assert status == 0, out
    found = json.loads(out.splitlines()[-1])
    assert found["losses"] <= FAR and found["parameters"] <= FAR, found

    plan = Plan.load(path)
    plan.verify()
    assert {str(at.hint) for at in plan.hints} == {"replicate()", "split()"}
    assert all("hybrid.py:" in at.source for at in plan.hints)
    ops, mesh = plan.stage.ops, plan.stage.mesh
    features = [op for op in plan.graph.ops if op.kind in ("conv2d", "normalization")]
    assert len(features) == 2 * 53
    for op in features:
        rows, weight = ops[op.name].ins[0], ops[op.name].ins[1]
        assert all(p.is_split and p.dim == 0 for p in rows), op.name
        assert not any(p.is_split for p in weight), op.name
    (product,) = (op for op in plan.graph.ops if op.module == "classifier" and op.kind == "matmul")
    assert mesh.size == 4 and all(p.is_split for p in ops[product.name].ins[1])
