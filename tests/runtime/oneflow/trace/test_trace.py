"""What a traced graph says, and that it computes what its model computes."""

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

from autoddl.graph.graph import Graph
from autoddl.runtime.oneflow.trace.trace import trace, trace_with_state
from tests.runtime.oneflow.trace import toys
from tests.runtime.oneflow.trace.evaluate import assert_same_training, run_graph
from tests.runtime.training import build


def kinds(graph, module=None):
    return [op.kind for op in graph.ops if module is None or op.module == module]


def test_a_linear_layer_in_full():
    traced = trace_with_state(nn.Linear(8, 5), *toys.example(), loss=F.cross_entropy)
    graph = traced.graph
    assert [(op.name, op.kind, op.inputs) for op in graph.ops[:5]] == [
        ("input.0", "input", ()),
        ("weight", "param", ()),
        ("matmul", "matmul", ("input.0", "weight")),
        ("bias", "param", ()),
        ("broadcast_add", "broadcast_add", ("matmul", "bias")),
    ]
    assert graph.ops[1].attrs == {"name": "weight", "trainable": True}
    assert graph.ops[2].attrs == {"alpha": 1.0, "transpose_a": False, "transpose_b": True}
    assert str(graph.tensors["matmul"].spec) == "float32[4, 5]"
    assert graph.outputs == ("broadcast_add",)
    assert graph.ops[-1].kind == "loss" and graph.ops[-1].inputs == (graph.loss,)
    assert {op.module for op in graph.ops[6:]} == {"loss", ""}  # the target is the model's input
    assert (graph.batch, graph.name) == (4, "Linear")
    assert [str(spec) for spec in traced.examples] == ["float32[4, 8]", "int64[4]"]


def test_operators_carry_their_submodules_paths():
    graph = trace(nn.Sequential(toys.Mlp(), nn.ReLU()), toys.rows())
    assert [(op.name, op.module) for op in graph.ops if op.kind not in ("param", "input")] == [
        ("0.first/matmul", "0.first"),
        ("0.first/broadcast_add", "0.first"),
        ("0.act/gelu", "0.act"),
        ("0.last/matmul", "0.last"),
        ("0.last/broadcast_add", "0.last"),
        ("1/relu", "1"),
    ]
    assert graph.loss == "" and "loss" not in kinds(graph)


@pytest.mark.parametrize(
    "model",
    [toys.Mlp, toys.InPlace, toys.Tied, toys.Norms, toys.Captured, toys.NeedlesslyStopped],
)
def test_the_graph_computes_what_the_model_computes(model):
    flow.manual_seed(0)
    module = model()
    traced = trace_with_state(module, *toys.example(), loss=F.cross_entropy)
    assert "opaque" not in kinds(traced.graph)
    assert_same_training(traced, module, toys.example(), F.cross_entropy)


def test_in_place_operators_leave_older_values_alone():
    class AddTwice(nn.Module):
        def forward(self, x):
            y = x * 2
            z = y + 1
            y += 10
            return y, z

    (y, z), _ = run_graph(trace_with_state(AddTwice(), flow.ones(3)), [flow.ones(3)])
    assert y.tolist() == [12.0] * 3 and z.tolist() == [3.0] * 3


def test_tied_parameters_are_one_operator_under_the_first_name():
    traced = trace_with_state(toys.Tied(), *toys.example(), loss=F.cross_entropy)
    names = [op.attrs["name"] for op in traced.graph.params]
    assert "first.weight" in names and "again.weight" not in names
    assert "again.weight" not in traced.params
    readers = [op.name for op, _ in traced.graph.consumers["first.weight"]]
    assert readers == ["first/matmul", "first/matmul_1", "again/matmul"]


def test_what_nobody_reads_is_not_in_the_graph_but_in_the_state():
    traced = trace_with_state(toys.Norms(), *toys.example(), loss=F.cross_entropy)
    assert "unused.weight" in traced.params
    assert "unused.weight" not in {op.attrs["name"] for op in traced.graph.params}
    assert "batch_norm.num_batches_tracked" in traced.buffers
    assert "batch_norm.num_batches_tracked" not in traced.graph.tensors
    assert "dropout" not in kinds(traced.graph)
    (norm,) = [op for op in traced.graph.ops if op.kind == "normalization"]
    assert len(norm.inputs) == 5 and len(norm.outputs) == 1


def test_statistics_move_although_nobody_reads_the_result():
    """As on one device, where the operator has run all the same."""
    model, loss, batch = build("convnet")
    graph = trace(model, *batch(0, 8), loss=loss)
    scopes = {op.name.rpartition("/")[0] for op in graph.ops if op.kind == "normalization"}
    assert scopes == {"bn1", "bn2", "aside.1"}
    assert "aside.0" in {op.name.rpartition("/")[0] for op in graph.ops if op.kind == "conv2d"}


def test_captured_tensors_are_numbered_buffers_and_captured_parameters_are_parameters():
    model = toys.Captured()
    traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy)
    captured = {op.attrs["name"] for op in traced.graph.ops if op.kind == "buffer"}
    assert captured == {"#0", "#1"}
    assert traced.buffers["#0"].tolist() == [3.0] * 8
    assert traced.buffers["#1"].tolist() == list(range(8))
    assert [op.attrs["name"] for op in traced.graph.params] == ["last.weight", "last.bias"]


def test_no_operator_changes_nothing():
    class Padding(nn.Module):
        def forward(self, x):
            x = x.permute(0, 1).reshape(4, 8).expand(4, 8).contiguous()
            return flow.relu(x[:, :].to(flow.float32).narrow(1, 0, 8).squeeze(1))

    assert kinds(trace(Padding(), toys.rows())) == ["input", "relu"]


def test_operands_have_one_name():
    class Operands(nn.Module):
        def forward(self, x):
            return ((x * 2 + 0.5) ** 2).masked_fill(x > 0, -1e4)

    graph = trace(Operands(), toys.rows())
    operands = {op.kind: op.attrs.get("operand") for op in graph.ops if op.kind != "input"}
    assert operands == {
        "scalar_mul": 2,
        "scalar_add": 0.5,
        "scalar_pow": 2,
        "scalar_logical_greater": 0,
        "masked_fill": -1e4,
    }


def test_frozen_parameters_are_marked():
    model = toys.Mlp()
    model.first.weight.requires_grad_(False)
    graph = trace(model, *toys.example(), loss=F.cross_entropy)
    assert {op.name: op.attrs["trainable"] for op in graph.params} == {
        "first.weight": False,
        "first.bias": True,
        "last.weight": True,
        "last.bias": True,
    }


def test_dropout_is_traced_whatever_mode_the_model_is_in():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.BatchNorm1d(8))
    for mode in (True, False):
        model.train(mode)
        graph = trace(model, toys.rows())
        (dropout,) = [op for op in graph.ops if op.kind == "dropout"]
        assert dropout.attrs["rate"] == 0.1 and len(dropout.outputs) == 1
        assert [m.training for m in model.modules()] == [mode] * 4


def test_a_submodule_frozen_in_a_training_model_stays_frozen():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model[1].eval()
    (norm,) = [op for op in trace(model, toys.rows()).ops if op.kind == "normalization"]
    assert not norm.attrs["training"]


def test_the_model_is_as_before():
    model = toys.Norms()
    weight, counter = model.first.weight, model.batch_norm.num_batches_tracked
    before = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    methods = [nn.Module.__call__, flow.Tensor.detach, flow.Tensor.__add__, flow.add]
    trace(model, *toys.example(), loss=F.cross_entropy)
    assert model.first.weight is weight and model.batch_norm.num_batches_tracked is counter
    assert methods == [nn.Module.__call__, flow.Tensor.detach, flow.Tensor.__add__, flow.add]
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    assert model(toys.rows()).is_eager


def test_two_traces_agree_and_the_file_keeps_everything(tmp_path):
    flow.manual_seed(0)
    first = trace(toys.Norms(), *toys.example(), loss=F.cross_entropy)
    second = trace(toys.Norms(), *toys.example(), loss=F.cross_entropy)
    assert first.fingerprint == second.fingerprint
    first.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == first


def test_a_loss_of_one_element_and_several_outputs():
    model = toys.Structured()
    traced = trace_with_state(
        model, toys.rows(), toys.labels(), loss=lambda out, y: F.cross_entropy(out["logits"], y)
    )
    result, loss = run_graph(traced, toys.example())
    expected = model(toys.rows())
    assert set(result) == {"logits", "sum"}
    np.testing.assert_allclose(result["logits"].numpy(), expected["logits"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(result["sum"].numpy(), expected["sum"].numpy(), rtol=1e-5)
    assert loss is not None and loss.shape == ()


def test_a_result_may_be_a_tensor_that_the_model_keeps():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(4, 4), flow.ones(4)

        def forward(self, x):
            return self.linear(x), self.scale

    graph = trace(Kept(), flow.randn(8, 4), flow.randn(8, 4), loss=lambda y, t: (y[0] - t).mean())
    assert [graph.producers[name].kind for name in graph.outputs] == ["broadcast_add", "buffer"]


def test_a_loss_module_is_the_loss():
    graph = trace(toys.Mlp(), *toys.example(), loss=nn.CrossEntropyLoss())
    assert kinds(graph, "loss")[-2:] == ["broadcast_div", "loss"]
    (nll,) = [op for op in graph.ops if op.kind == "nll"]
    assert len(nll.outputs) == 2


def test_numbers_repeated_keep_their_dtype():
    class Repeated(nn.Module):
        def forward(self, x):
            return x.repeat_interleave(2, dim=1)

    x = flow.randn(4, 3)
    result, _ = run_graph(trace_with_state(Repeated(), x), (x,))
    assert result.tolist() == x.repeat_interleave(2, dim=1).tolist()
