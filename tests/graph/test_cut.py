"""Cutting graphs: layers, what crosses, and stage graphs that the planner prices."""

import dataclasses

import pytest

from autoddl.cluster.spec import Cluster
from autoddl.cost.model import CostModel
from autoddl.graph.cut import cut_graph
from autoddl.graph.graph import Graph
from autoddl.graph.regions import crossing_bytes
from autoddl.planner.mesh import plan_mesh
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.groups import MicroBatches
from autoddl.plans.checks import verify_stage
from autoddl.plans.stage_figures import StageFigures, stage_figures
from tests.clusters import cluster
from tests.graphs import Builder, attention, compared, mlp, residual, tied


def u_shaped(batch: int, width: int, depth: int) -> Graph:
    """Down through `depth` layers and up again; the i-th is added to the i-th from the end."""
    b = Builder(batch)
    x = b.input(0, (batch, width))
    kept = []
    for n in range(depth):
        x = b.unary("relu", b.linear(f"down{n}", x, width >> n), f"down{n}/relu")
        kept.append(x)
    for n in reversed(range(depth)):
        x = b.linear(f"up{n}", x, width >> n)
        x = b.op(f"up{n}/sum", "add_n", (x, kept[n]), (batch, width >> n))
    return b.graph(x, "u-shaped")


GRAPHS = {
    "mlp": mlp(8, (16, 32, 32, 16, 8)),
    "attention": attention(2, 4, 6, 16, 2),
    "residual": residual(3, 8, 16),
    "tied": tied(8, 16),
    "u-shaped": u_shaped(8, 32, 3),
}


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]


def test_layers_are_all_computed_operators_in_order(graph):
    cut = cut_graph(graph)
    names = [name for layer in cut.layers for name in layer]
    free = graph.free_ops | {op.name for op in graph.params}
    assert names == [op.name for op in graph.ops if op.name not in free]
    heavy = [sum(op.kind.endswith("matmul") for op in graph.ops if op.name in set(layer))
             for layer in cut.layers]  # fmt: skip
    assert set(heavy) == {1}


def test_stages_cover_the_graph_and_fit_together(graph):
    """Every way to cut into two and three: each operator once, what is sent is what is read."""
    cut = cut_graph(graph)
    count = len(cut.layers)
    ways = [(0, a, count) for a in range(1, count)]
    ways += [(0, a, b, count) for b in range(2, count) for a in range(1, b)]
    free = graph.free_ops | {op.name for op in graph.params}
    for bounds in ways:
        stages = [cut.stage(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        bodies = [
            [op for op in s.ops if op.name not in free and not op.kind.startswith("stage_")]
            for s in stages
        ]
        assert [op for body in bodies for op in body] == [
            op for op in graph.ops if op.name not in free
        ]
        assert [bool(s.loss) for s in stages] == [False] * (len(stages) - 1) + [True]
        ends = {
            kind: [
                (n, op.attrs["tensor"], op.attrs["gradient"])
                for n, s in enumerate(stages)
                for op in s.ops
                if op.kind == kind
            ]
            for kind in ("stage_input", "stage_output")
        }
        sent = {(tensor, gradient) for _, tensor, gradient in ends["stage_output"]}
        assert sent == {(tensor, gradient) for _, tensor, gradient in ends["stage_input"]}
        assert len(sent) == len(ends["stage_output"])
        home = {tensor: n for n, tensor, _ in ends["stage_output"]}
        assert all(home[tensor] < n for n, tensor, _ in ends["stage_input"])


def test_gradients_flow_as_in_the_whole_graph(graph):
    cut = cut_graph(graph)
    for first in range(len(cut.layers)):
        for last in range(first + 1, len(cut.layers) + 1):
            stage = cut.stage(first, last)
            assert stage.needs_grad == graph.needs_grad & set(stage.tensors)


def test_one_stage_is_the_graph(graph):
    cut = cut_graph(graph)
    assert cut.stage(0, len(cut.layers)) is graph


def test_long_skips_travel_directly():
    cut = cut_graph(GRAPHS["u-shaped"])
    assert len(cut.layers) == 6
    assert cut.sent(0, 1) == ("down0/relu",)
    assert cut.received(5, 6) == ("down0/relu", "up1/sum")
    assert cut.received(2, 3) == ("down1/relu",)  # what passes by is not received
    assert cut.readers["down0/relu"] == (1, 5)


def test_tied_weights_are_replicated():
    cut = cut_graph(GRAPHS["tied"])
    assert cut.tied == {"weight": (0, 1)}
    for n in (0, 1):
        assert [op.name for op in cut.stage(n, n + 1).params] == ["weight"]


def test_crossing_bytes_of_a_chain_with_skips():
    graph = GRAPHS["u-shaped"]
    body = [op for op in graph.ops if op.kind not in ("input", "param")]
    crossing = crossing_bytes(graph, body)
    assert crossing[0] == 0
    middle = next(n for n, op in enumerate(body) if op.name.startswith("up2/"))
    assert crossing[middle] == 4 * 8 * (32 + 16 + 8)


def test_fewer_layers_on_request():
    graph = attention(4, 4, 6, 16, 2)
    whole = cut_graph(graph)
    assert len(whole.layers) == 16
    few = cut_graph(graph, most_layers=4)
    # what is left are the cuts between attention layers, which carry one tensor
    assert [layer[-1] for layer in few.layers[:-1]] == [
        f"layer{n}.proj/broadcast_matmul" for n in range(3)
    ]
    with pytest.raises(ValueError, match="at least 1"):
        cut_graph(graph, most_layers=0)


def test_a_decoder_that_reads_what_an_encoder_made_is_cut_as_finely():
    """More bytes cross its cuts: by these alone all of it was one layer, and so one stage."""
    b = Builder(8)
    x = b.input(0, (8, 32))
    for n in range(8):
        x = b.unary("relu", b.linear(f"encoder{n}", x, 32), f"encoder{n}/relu")
    memory = x
    for n in range(8):
        x = b.op(f"decoder{n}/sum", "add_n", (b.linear(f"decoder{n}", x, 32), memory), (8, 32))
    graph = b.graph(x, "encoder and decoder")
    for most in (4, 8, 12):
        layers = cut_graph(graph, most_layers=most).layers
        assert len(layers) == most
        assert max(sum("matmul" in name for name in layer) for layer in layers) <= 2 * 16 / most


def test_no_such_stage():
    with pytest.raises(ValueError, match="run of the 4 layers"):
        cut_graph(GRAPHS["mlp"]).stage(2, 5)


def test_stage_graph_survives_json_and_another_batch():
    stage = cut_graph(GRAPHS["residual"]).stage(1, 4)
    assert Graph.from_json(stage.to_json()) == stage
    half = stage.with_batch(4)
    assert half.tensors["block0/sum"].spec.shape[0] == 4


def priced(graph: Graph, machine: Cluster) -> StageFigures:
    """Of the plan of a whole graph or a stage's, in two micro-batches."""
    micro, model = MicroBatches.of(graph), CostModel(machine)
    return stage_figures(plan_mesh(micro, (2,), model, PlanOptions()).stage)


def test_planner_prices_a_stage(graph):
    """A stage's plan is consistent, and all stages compute as much as the whole model."""
    machine = cluster("gcp_a100", 2, 2)
    cut = cut_graph(graph)
    middle = len(cut.layers) // 2
    halves = [cut.stage(0, middle), cut.stage(middle, len(cut.layers))]
    found = [priced(half, machine) for half in halves]
    for stage in (one.stage for one in found):
        verify_stage(stage)
        for op in stage.graph.ops:
            if op.kind.startswith("stage_"):
                placed = stage.ops[op.name]
                (nd,) = placed.outs or placed.ins
                assert not nd.has_partial
                (grad,) = placed.grad_outs or placed.grad_ins
                assert grad == nd
    received = [op for op in found[1].stage.graph.ops if op.kind == "stage_input"]
    assert sum(found[1].costs[op.name].memory_bytes for op in received) > 0
    one = machine.with_shape(1, 1)
    whole, *parts = (priced(part, one).cost.compute_s for part in (graph, *halves))
    assert sum(parts) == pytest.approx(whole)


def test_a_graph_without_loss_or_ends_is_refused():
    graph = GRAPHS["mlp"]
    bare = dataclasses.replace(
        graph, ops=tuple(op for op in graph.ops if op.kind != "loss"), loss=""
    )
    with pytest.raises(ValueError, match="without a loss"):
        find_plan(bare, cluster("gcp_a100", 1, 2))


def test_what_is_only_compared_later_gets_no_gradient_from_there():
    cut, h = cut_graph(compared(8, 16)), "fc0/add"
    gradients = set()
    for middle in range(1, len(cut.layers)):
        sides = cut.stage(0, middle), cut.stage(middle, len(cut.layers))
        ends = [
            {op.attrs["tensor"]: op.attrs["gradient"] for op in side.ops if op.kind == kind}
            for side, kind in zip(sides, ("stage_output", "stage_input"), strict=True)
        ]
        assert ends[0] == ends[1]
        later = {op.name for op in sides[1].ops}
        if h in ends[0]:
            assert ends[0][h] == ("fc1/matmul" in later)
            gradients.add(ends[0][h])
    assert False in gradients
