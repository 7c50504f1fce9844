"""OneFlow's own planner: its choice read back, and priced beside ours."""

import pytest

from autoddl.runtime.oneflow.rival.choice import ask_oneflow
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.signature import signatures_of
from autoddl.tools.compare import RIVAL, compare
from tests.clusters import cluster
from tests.graphs import mlp

GRAPH = mlp(64, (256, 1024, 256, 64))


def test_its_choice_is_read_back_and_priced():
    where = cluster("gcp_a100", 2, 4)
    chosen = ask_oneflow(GRAPH, where.mesh, "adam", timeout_s=120)
    products = [op for op in GRAPH.ops if op.kind == "matmul"]
    assert {op.name for op in products} <= chosen.keys()
    for op in products:  # each axis has a signature that our rules know
        ins, outs = chosen[op.name]
        known = {(s.ins, s.outs) for s in signatures_of(GRAPH.spec(op))}
        for axis in range(where.mesh.num_axes):
            assert (tuple(i[axis] for i in ins), tuple(o[axis] for o in outs)) in known
    found = compare(GRAPH, where, rival=chosen)
    rival = found.schemes[-1]
    assert rival.name == RIVAL and rival.plan is not None
    rival.plan.verify()
    for op in products:
        assert (rival.plan.stage.ops[op.name].ins, rival.plan.stage.ops[op.name].outs) == chosen[
            op.name
        ]
    assert found.ours.seconds <= rival.seconds * (1 + 1e-6)


def test_it_is_given_up_in_time():
    with pytest.raises(ValueError, match=r"had not ended after 0\.2 seconds"):
        ask_oneflow(GRAPH, Mesh(2, 1), "adam", timeout_s=0.2)


def test_why_it_is_not_known_is_told():
    found = compare(GRAPH, cluster("laptop", 1, 2), rival="it crashed")
    assert found.schemes[-1].plan is None and "it crashed" in found.schemes[-1].why
