import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.asked import micro_graph
from autoddl.planner.tables.groups import (
    MicroBatches,
    composite_signatures,
    make_groups,
    partial_gradient,
)
from autoddl.planner.tables.tables import build_tables
from autoddl.sbp.placement import B, P, S
from autoddl.sbp.signature import Signature, signatures_of
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp, residual, tied


def names(grouping):
    return [[op.name for op in group.ops] for group in grouping.groups]


def test_light_operators_join_their_only_reader():
    grouping = make_groups(mlp(64, (8, 16, 16)).with_forks())
    assert names(grouping) == [
        ["fc0/matmul"],
        ["fc0/add", "relu0", "fc1/matmul"],
        ["fc1/add", "relu1", "sum"],
        ["loss"],
    ]


def test_every_operator_is_grouped_or_a_source():
    for graph in (residual(2, 64, 16), attention(2, 8, 16, 64, 4), tied(8, 8)):
        graph = graph.with_forks()
        grouping = make_groups(graph)
        grouped = [op.name for group in grouping.groups for op in group.ops]
        assert len(grouped) == len(set(grouped))
        for op in graph.ops:
            single = op.kind == "param" and len(graph.consumers[op.outputs[0]]) == 1
            assert (op.name in grouping.owner) != (single or op.name in grouping.free)


def test_a_sum_of_two_branches_is_not_merged():
    grouping = make_groups(residual(2, 64, 16).with_forks())
    assert not any({"block1/sum", "sum"} <= set(group) for group in names(grouping))


def test_a_weight_of_unlike_uses_is_a_group_of_its_own():
    build = Builder(8)
    weight = build.param("weight", (16, 16))
    x = build.op("rows", "gather", (weight, build.input(0, (8,), "int64")), (8, 16), axis=0)
    product = build.op("product", "matmul", (x, weight), (8, 16), transpose_a=False,
                       transpose_b=False, alpha=1.0)  # fmt: skip
    graph = build.graph(product, "tied").with_forks()
    assert ["weight"] in names(make_groups(graph))


def test_a_weight_of_alike_uses_goes_with_their_fork():
    grouping = make_groups(tied(64, 16).with_forks())
    fork = grouping.groups[names(grouping).index(["weight.fork"])]
    assert [port.tensor for port in fork.sources] == ["weight"]
    assert ["use0"] in names(grouping) and ["use1"] in names(grouping)


def test_inner_edges_agree():
    graph = attention(1, 8, 16, 64, 4).with_forks()
    for group in make_groups(graph).groups:
        position = {op.name: n for n, op in enumerate(group.ops)}
        for composite in composite_signatures(graph, group):
            for number, op in enumerate(group.ops[:-1]):
                reader, index = graph.consumers[op.outputs[0]][0]
                at = composite.signatures[position[reader.name]]
                assert composite.signatures[number].outs[0] == at.ins[index]
                if op.outputs[0] in graph.needs_grad:
                    assert composite.signatures[number].grad_outs[0] == at.grad_ins[index]


def test_a_product_after_light_operators_keeps_its_column_split():
    """Needs the Partial gradient to pass through the replicated light operators."""
    graph = mlp(64, (8, 16, 16)).with_forks()
    group = next(g for g in make_groups(graph).groups if g.head.name == "fc1/matmul")
    heads = {str(c) for c in composite_signatures(graph, group)}
    assert "B, S0 -> S1 ; S1 -> P, S0" in heads


def test_partial_gradients_pass_through_replicated_computation_only():
    replicated = Signature((B,), (B,), (B,), (B,))
    assert partial_gradient(replicated) == Signature((B,), (B,), (P,), (P,))
    assert partial_gradient(Signature((S(0),), (S(0),), (S(0),), (S(0),))) is None
    assert partial_gradient(Signature((P,), (P,), (B,), (B,))) is None
    assert partial_gradient(Signature((B,), (B,), (None,), (None,))) is None


def shared_bias(batch, width):
    """One row of activations is as large as the bias, which is a group."""
    build = Builder(batch)
    bias, out = build.param("bias", (width,)), build.input(0, (batch, width))
    for n in range(2):
        out = build.unary("relu", build.linear(f"fc{n}", out, width, bias=False), f"relu{n}")
        out = build.op(f"add{n}", "broadcast_add", (out, bias), (batch, width))
    return build.graph(out, "shared_bias")


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(
    "graph", [mlp(8, (8, 16, 16)), shared_bias(4, 8), tied(8, 16), attention(3, 4, 8, 64, 8)]
)
def test_groups_at_another_batch_are_those_of_its_graph(graph, parts):
    found = MicroBatches.of(graph).grouping(parts)
    graph = micro_graph(graph, parts)
    assert found == make_groups(graph)
    assert found.graph.needs_grad == graph.needs_grad
    assert found.graph.free_ops == graph.free_ops
    assert found.graph.numbers_of_dims == graph.numbers_of_dims


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_what_is_run_again_at_another_batch_is_that_of_its_graph(parts):
    micro = MicroBatches.of(attention(3, 4, 8, 64, 8))
    blocks = repeated_blocks(micro.whole)
    assert blocks
    graph = micro.graph(parts)
    found, expected = micro.again(parts, blocks), Recomputation(graph, blocks)
    assert found == expected
    assert found.last_products == expected.last_products
    for op in graph.ops:
        assert found.key(op) == expected.key(op)


def test_groups_of_one_kind_have_the_same_operators_at_every_batch():
    """But for which part of a tensor they take, which changes no signature."""
    micro = MicroBatches.of(attention(3, 4, 8, 64, 8))
    for parts in (1, 2, 4):
        grouping = micro.grouping(parts)
        seen = {}
        for group, kind in zip(grouping.groups, grouping.kinds, strict=True):
            specs = [grouping.graph.spec(op) for op in group.ops]
            told = [(s.kind, s.inputs, s.outputs, signatures_of(s)) for s in specs]
            assert seen.setdefault(kind, told) == told
        assert len(seen) < len(grouping.groups)


def test_the_steps_of_a_sequence_share_their_tables():
    """Each takes another part of the input, and is stacked at another place: LSTMs are such."""
    build = Builder(4)
    x, parts = build.input(0, (4, 6, 16)), []
    whole = build.linear("in", x, 16, bias=False)
    for n in range(6):
        name = f"part{n}"
        parts.append(build.op(name, "narrow", (whole,), (4, 1, 16), dim=1, start=n, length=1))
    out = build.op("stack", "stack", tuple(parts), (4, 6, 1, 16), axis=1)
    graph = build.graph(out, "steps").with_forks()
    grouping = make_groups(graph)
    position = {group.head.name: n for n, group in enumerate(grouping.groups)}
    steps, stack = [position[f"part{n}"] for n in range(6)], position["stack"]
    assert len({grouping.kinds[n] for n in steps}) == 1
    tables = build_tables(graph, CostModel(cluster("laptop", 2, 2)))
    assert tables is not None
    (*firsts, second) = [tables.variables[n] for n in (*steps, stack)]
    edges = tables.problem.edges
    joined = [e.table for e in edges if e.first in firsts and e.second == second]
    assert len(joined) == 6 and len(set(joined)) == 1
