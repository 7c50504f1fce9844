"""What a plan counts is what the counters of the hosts' links show."""

import pytest

pytest.importorskip("oneflow", reason="needs OneFlow")

from autoddl.cluster import Cluster
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.sbp.mesh import Mesh
from autoddl.tools.box import Box
from benchmarks.box import expected
from benchmarks.box.bytes import LAPTOP, case_of
from benchmarks.box.work import run_plans, run_steps

pytestmark = pytest.mark.usefixtures("possible")

SHAPE = (512, 256)
STEPS = [
    ("(S0, B)", "all_gather[0] S0->B"),
    ("(S1, S1)", "all_gather[0,1] S1->B"),
    ("(P, S0)", "reduce_scatter[0] P->S1"),
    ("(P, P)", "all_reduce[0,1] P->B"),
    ("(S0, S0)", "all_to_all[0,1] S0->S1"),
    ("(B, P)", "all_reduce[1] P->B"),
    ("(B, B)", "slice[0] B->S0"),
]


UNEQUAL = [
    ("(S0)", "all_gather[0] S0->B"),
    ("(S1)", "all_gather[balanced][0] S1->B"),
    ("(P)", "reduce_scatter[balanced][0] P->S0"),
    ("(S0)", "all_to_all[0] S0->S1"),
]


def test_unequal_pieces_send_what_they_should():
    """The busiest host, out of it or into it."""
    mesh, shape = Mesh(4, 1, (5, 2, 1, 1)), (36 * 9, 32 * 9)
    with Box(4, 1) as box:
        found = run_steps(box, shape, UNEQUAL, repeats=3, shares=mesh.shares)
    for (nd, step), hosts in zip(UNEQUAL, found, strict=True):
        most = max(host[f"{way}_payload"] for host in hosts for way in ("sent", "received"))
        planned = expected.of_step(shape, nd, step, mesh)
        assert planned.planned * 0.99 < most < planned.payload * 1.03, (step, most, planned)


@pytest.mark.full  # on one host, `runtime/comm/test_bytes.py` counts them in every run
def test_steps_and_plans_send_what_they_should():
    mesh = Mesh(2, 2)
    graph = trace_entry("benchmarks.box.models:mlp")
    cluster = Cluster.load(LAPTOP).with_shape(2, 2)
    plans = {
        "data parallel": find_plan(
            graph, cluster, PlanOptions(optimizer="sgd"), space=data_parallel(graph)
        ),
        "random": find_plan(
            graph,
            cluster,
            PlanOptions(optimizer="sgd", search="random", restarts=1, baselines=False),
        ),
    }
    with Box(2, 2) as box:
        steps = run_steps(box, SHAPE, STEPS, repeats=3)
        trained = run_plans(box, list(plans.values()), 1, measure="bytes")
    cases = [
        case_of(step, expected.of_step(SHAPE, nd, step, mesh), row)
        for (nd, step), row in zip(STEPS, steps, strict=True)
    ]
    cases += [
        case_of(name, expected.of_plan(plan), row)
        for (name, plan), row in zip(plans.items(), trained, strict=True)
    ]
    assert [case.planned > 0 for case in cases] == [True] * 5 + [False] * 2 + [True] * 2
    for case in cases:
        assert all(abs(error) < 0.02 for error in case.errors), case
