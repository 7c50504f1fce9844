"""Which operators are alike, and where gradients flow."""

import json
import math
from dataclasses import replace

import pytest

from autoddl.graph.graph import Graph, Op, Tensor
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.signature import signatures_of
from tests.graphs import Builder, alike, attention, gated, mlp, residual, tied

GRAPHS = {
    "mlp": mlp(64, (8, 16, 16)),
    "attention": attention(3, 8, 16, 64, 4),
    "residual": residual(2, 64, 16),
    "gated": gated(8, 8),
    "alike": alike(8, 8),
    "tied": tied(8, 8),
}


def without_part(op):
    """What decides where an operator may be split, which the part that it takes does not."""
    return op.kind, {k: v for k, v in op.attrs.items() if k != "start" or op.kind != "narrow"}


def tensors(graph, op):
    return [graph.tensors[name].spec for name in (*op.inputs, *op.outputs)]


@pytest.mark.parametrize("name", GRAPHS)
def test_operators_of_one_number_look_the_same_to_rules_at_every_batch(name):
    whole = GRAPHS[name].with_forks()
    for graph in (whole, whole.with_batch(whole.batch // 2)):
        first: dict[int, Op] = {}
        for op in graph.ops:
            other = first.setdefault(graph.alike[op.name], op)
            assert signatures_of(graph.spec(op)) == signatures_of(graph.spec(other))
            assert graph.signatures(op) == signatures_of(graph.spec(op))
            assert op.kind == "param" or without_part(op) == without_part(other)
            assert tensors(graph, op) == tensors(graph, other)
        assert len(first) < len(graph.ops) or name == "tied"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_smaller_batch_has_the_numbers_of_a_graph_of_its_own(name):
    whole = GRAPHS[name].with_forks()
    assert whole.alike
    half = whole.with_batch(whole.batch // 2)
    assert half.alike == replace(half).alike


def test_numbers_tell_attributes_sizes_and_the_batch_apart():
    b = Builder(8)
    x = b.input(0, (8, 8))
    for number, kind in enumerate(("relu", "relu", "gelu")):
        x = b.unary(kind, x, f"light{number}")
    for number, alpha in enumerate((1.0, 2.0, 2.0)):
        x = b.op(f"scaled{number}", "leaky_relu", (x,), (8, 8), alpha=alpha)
    still = b.param("still", (8, 8))
    b.unary("relu", still, "of_no_batch")
    graph = b.graph(x, "numbered")
    number = graph.alike
    assert number["light0"] == number["light1"] != number["light2"]
    assert number["scaled0"] != number["scaled1"] == number["scaled2"]
    assert number["of_no_batch"] != number["light0"]


def _opaque(name: str, x: str, batchwise: bool) -> Op:
    attrs = {"num_args": 1, "batchwise": batchwise, "module": object()}
    return Op(name, "opaque", (x,), (name,), attrs)


def test_opaque_operators_are_alike_if_they_are_split_alike():
    b = Builder(8)
    x = b.input(0, (8, 8))
    for number, batchwise in enumerate((True, True, False)):
        op = _opaque(f"opaque{number}", x, batchwise)
        x = b.unary("relu", x, op.name)  # makes its tensor
        b.ops[-1] = op
    number = b.graph(x, "opaque").alike
    assert number["opaque0"] == number["opaque1"] != number["opaque2"]


def _flows(graph: Graph, op: Op) -> tuple[list[int], list[int]]:
    """Inputs and outputs through which a gradient may pass, asked of the rule itself."""
    signature = signatures_of(graph.spec(op))[0]
    given = [n for n, place in enumerate(signature.grad_ins) if place is not None]
    return given, [n for n, place in enumerate(signature.grad_outs) if place is not None]


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_flow_from_the_loss_to_the_parameters(name):
    graph = GRAPHS[name].with_forks()
    towards: set[str] = set()
    for op in graph.ops:
        given, taken = _flows(graph, op)
        if op.kind == "param" or any(op.inputs[n] in towards for n in given):
            towards |= {op.outputs[n] for n in taken}
    useful, giving = {graph.loss}, set()
    for op in reversed(graph.ops):
        given, taken = _flows(graph, op)
        if op.kind == "loss" or any(op.outputs[n] in useful for n in taken):
            useful |= {op.inputs[n] for n in given}
            giving |= {(op.name, n) for n in given if op.inputs[n] in towards}
    assert graph.needs_grad == towards & useful
    assert graph.gives_grad == giving


def test_attributes_that_json_has_no_numbers_for_survive_a_file():
    values = {"operand": -math.inf, "many": (math.inf, 0.5), "dtype": "float32", "shape": (2, 3)}
    made = Op("a", "arange", (), ("a",), values)
    tensors = {"a": Tensor("a", TensorSpec((2,)), ())}
    graph = Graph(ops=(made,), tensors=tensors, outputs=("a",), loss="", batch=0, name="m")
    (read,) = Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False))).ops
    assert read == made
    (text,) = (op["attrs"] for op in graph.to_json()["ops"])
    assert text == {"dtype": "float32", "many": ["inf", 0.5], "operand": "-inf", "shape": [2, 3]}
