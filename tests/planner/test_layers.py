from autoddl.graph.graph import Op
from autoddl.planner.layers import topology, topology_letters
from autoddl.planner.planner import find_plan
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from tests.clusters import cluster
from tests.graphs import attention


def nds(*texts):
    return tuple(map(NdSbp.parse, texts))


def test_the_topology_of_a_product():
    op = Op("y", "broadcast_matmul", ("x", "w"), ("y",))
    ins = nds("(S0, S0, B, B, S2, B)", "(B, B, S0, S0, S1, B)")
    letters = topology_letters(op, ins, nds("(S0, S0, S2, S2, P, B)"))
    assert letters == ("S0", "S0", "B", "B", "S1", "R")
    assert topology(letters, Mesh(8, 8)) == "(S0:(4,1), B:(2,2), S1:(1,2), R:(1,2))"


def test_an_embedding_is_read_by_its_indices():
    op = Op("y", "gather", ("table", "indices"), ("y",))
    letters = topology_letters(op, nds("(B, S0, S1)", "(S0, B, B)"), nds("(S0, P, S2)"))
    assert letters == ("S0", "S1", "B")


def test_every_operator_belongs_to_one_layer():
    plan = find_plan(attention(2, 8, 16, 64, 4), cluster("piz_daint", 2, 2))
    members = [name for layer in plan.layers for name in layer.ops]
    assert sorted(members) == sorted(op.name for op in plan.graph.ops)
    names = [layer.name for layer in plan.layers]
    assert len(names) == len(set(names))
    assert "layer0.qkv" in names and "layer1.proj" in names
