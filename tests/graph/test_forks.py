"""Which uses of a tensor share a fork."""

from dataclasses import replace

import pytest

from autoddl.graph.builder import GraphBuilder
from autoddl.planner.options import PlanOptions
from autoddl.planner.schemes import baseline_plans
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graph.test_graph import GRAPHS
from tests.graphs import Builder, tied

SIZE = 64


def unlike():
    """A weight that is looked up twice, and multiplied with."""
    build = Builder(8)
    weight = build.param("weight", (SIZE, SIZE))
    rows = [build.input(n, (8,), "int64") for n in range(2)]
    found = [build.op(f"rows{n}", "gather", (weight, x), (8, SIZE), axis=0)
             for n, x in enumerate(rows)]  # fmt: skip
    both = build.op("both", "add_n", tuple(found), (8, SIZE))
    product = build.op("product", "matmul", (both, weight), (8, SIZE), transpose_a=False,
                       transpose_b=False, alpha=1.0)  # fmt: skip
    return build.graph(product, "unlike")


def test_alike_uses_of_a_parameter_share_a_fork_and_others_do_not():
    graph = unlike().with_forks()
    graph.verify()
    assert [(op.name, index) for op, index in graph.consumers["weight.fork"]] == [
        ("rows0", 0), ("rows1", 0),
    ]  # fmt: skip
    assert {op.name for op, _ in graph.consumers["weight"]} == {"weight.fork", "product"}
    assert graph.origin("weight.fork") is graph.producers["weight"]
    assert graph.with_forks().fingerprint == graph.fingerprint


def frozen_and_read_twice():
    """A frozen weight's product is read twice, and so is what follows, of trained ones."""
    build = Builder(8)
    kept = build.op("kept", "param", (), (SIZE, SIZE), name="kept", trainable=False)
    x = build.op("frozen", "matmul", (build.input(0, (8, SIZE)), kept), (8, SIZE),
                 transpose_a=False, transpose_b=False, alpha=1.0)  # fmt: skip
    y = build.op("same", "add_n", (x, x), (8, SIZE))
    z = build.linear("trained", build.op("all", "add_n", (x, y), (8, SIZE)), SIZE)
    z = build.op("both", "add_n", (z, build.unary("relu", z, "relu")), (8, SIZE))
    return build.graph(z, "frozen_and_read_twice")


@pytest.mark.parametrize("name", [*GRAPHS, "unlike", "frozen"])
def test_gradients_flow_through_forks_as_without_them(name):
    """`with_forks` says which, where a graph would find out for itself."""
    own = {"unlike": unlike, "frozen": frozen_and_read_twice}
    forked = (own[name]() if name in own else GRAPHS[name]).with_forks()
    assert "gradients" in vars(forked)
    assert forked.gradients == replace(forked).gradients


def test_a_weight_that_is_used_twice_alike_is_exchanged_once():
    graph, where = tied(8, SIZE), cluster("laptop", 2, 1)
    _, plan = baseline_plans(graph, where, PlanOptions(micro_batches=1))["data parallel"]
    assert plan is not None
    whole = SIZE * SIZE * 4
    assert stage_figures(plan.stage).cost.nic_bytes.gradient_sync == whole  # there and back


def test_each_output_of_an_operator_has_a_fork_of_its_own():
    e = GraphBuilder(8, scales=True)
    x = e.declare("x", (8, 6), "float32")
    e.source("x", "input", x, {"index": 0}, "")
    attrs = {"function": "fftn", "dims": (1,), "sizes": (6,), "norm": "backward"}
    parts = e.several("fft", [x], [((8, 6), "float32")] * 2, **attrs)
    graph = e.graph(
        "two", [e.same(k, part) for part in parts for k in ("sin", "cos")], None, "torch"
    )
    forks = [op.name for op in graph.with_forks().ops if op.kind == "fork"]
    assert forks == ["fft.fork", "fft:1.fork"]
