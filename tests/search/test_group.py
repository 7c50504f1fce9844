from autoddl.sbp.placement import B, P, S
from autoddl.sbp.signature import Signature
from autoddl.search.group import composite_signatures, make_groups, partial_gradient
from tests.graphs import attention, mlp, residual, tied


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


def test_a_tied_weight_is_a_group_of_its_own():
    grouping = make_groups(tied(64, 16).with_forks())
    assert ["weight"] in names(grouping)


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
