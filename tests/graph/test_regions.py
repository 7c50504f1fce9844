"""Repeated blocks are found by structure, and cut where little crosses."""

from autoddl.graph.regions import repeated_blocks
from tests.graphs import Builder, attention, mlp, residual, tied


def ends(graph):
    return [(block[0], block[-1]) for block in repeated_blocks(graph)]


def test_layers_of_a_perceptron():
    assert ends(mlp(8, (8,) * 4)) == [(f"fc{n}/matmul", f"relu{n}") for n in range(3)]


def test_layers_of_other_widths_are_no_blocks():
    assert ends(mlp(8, (8, 8, 8, 4, 2)))[-1] == ("fc1/matmul", "relu1")
    assert ends(tied(8, 8)) == []


def test_whole_layers_rather_than_parts_of_them():
    found = ends(attention(3, 8, 4, 8, 2))
    assert found == [(f"layer{n}.qkv/broadcast_matmul", f"layer{n}.proj/broadcast_matmul")
                     for n in range(3)]  # fmt: skip


def test_two_stretches():
    b = Builder(8)
    x = b.input(0, (8, 16))
    for n, width in enumerate((16, 16, 16, 4, 4, 4)):
        x = b.unary("relu", b.linear(f"fc{n}", x, width), f"relu{n}")
    widths = [op.split("/")[0] for op, _ in ends(b.graph(x, "two"))]
    assert widths == ["fc0", "fc1", "fc2", "fc3", "fc4"]


def test_blocks_are_disjoint_and_the_same_for_other_batches():
    graph = residual(4, 8, 8).with_forks()
    blocks = repeated_blocks(graph)
    names = [name for block in blocks for name in block]
    assert len(names) == len(set(names))
    assert repeated_blocks(graph.with_batch(4)) == blocks
