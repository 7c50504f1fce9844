"""Which uses of a tensor share a fork."""

from autoddl.planner.options import PlanOptions
from autoddl.planner.schemes import baseline_plans
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
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


def test_a_weight_that_is_used_twice_alike_is_exchanged_once():
    graph, where = tied(8, SIZE), cluster("laptop", 2, 1)
    _, plan = baseline_plans(graph, where, PlanOptions(micro_batches=1))["data parallel"]
    assert plan is not None
    whole = SIZE * SIZE * 4
    assert stage_figures(plan.stage).cost.nic_bytes.gradient_sync == whole  # there and back
