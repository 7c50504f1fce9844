"""Submodules that become one operator."""

import dataclasses

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F
import pytest

from autoddl.graph.hints import batchwise, opaque
from autoddl.runtime.oneflow.trace.trace import is_known, trace_with_state
from autoddl.runtime.traced import OpaqueWarning
from tests.runtime.oneflow.trace import toys
from tests.runtime.oneflow.trace.evaluate import assert_same_training, run_graph


def without_gelu(kind):
    return is_known(kind) and kind != "gelu"


def opaque_of(traced):
    return {op.name: op for op in traced.graph.ops if op.kind == "opaque"}


def test_a_leaf_with_an_unknown_operator():
    model = toys.Mlp()
    with pytest.warns(OpaqueWarning, match="act runs as one .* operator gelu.* 64 elements"):
        traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy, known=without_gelu)
    (op,) = opaque_of(traced).values()
    assert op.name == "act/opaque" and op.inputs == ("first/broadcast_add",)
    assert op.attrs == {"module": "act", "batchwise": False, "num_args": 1}
    assert traced.graph.tensors["act/opaque"].batch_dims == (0,)
    assert_same_training(traced, model, toys.example(), F.cross_entropy)


def test_an_operator_of_the_models_own_forward_takes_the_whole_model():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

        def forward(self, x):
            return self.last(F.gelu(self.first(x)))

    model = Direct()
    with pytest.warns(OpaqueWarning, match="the model runs as one"):
        traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy, known=without_gelu)
    (op,) = opaque_of(traced).values()
    assert op.inputs[1:] == ("first.weight", "first.bias", "last.weight", "last.bias")
    assert op.attrs["module"] == "" and op.attrs["num_args"] == 1
    assert_same_training(traced, model, toys.example(), F.cross_entropy)


def test_an_operator_of_the_loss_takes_the_loss():
    def loss(output, target):
        return F.cross_entropy(F.gelu(output), target)

    model = nn.Linear(8, 5)
    with pytest.warns(OpaqueWarning, match="loss runs as one"):
        traced = trace_with_state(model, *toys.example(), loss=loss, known=without_gelu)
    (op,) = opaque_of(traced).values()
    assert op.attrs["module"] == "loss" and op.attrs["num_args"] == 2
    assert_same_training(traced, model, toys.example(), loss)


def test_each_call_is_its_own_operator_and_keeps_its_structure():
    def loss(output, target):
        return F.cross_entropy(output["logits"], target) + output["sum"] * 0.01

    model = toys.Structured()
    with pytest.warns(OpaqueWarning):
        traced = trace_with_state(model, *toys.example(), loss=loss, known=without_gelu)
    ops = opaque_of(traced)
    assert list(ops) == ["inner/opaque", "inner/opaque_1"]
    assert [op.attrs["num_args"] for op in ops.values()] == [3, 2]
    assert all(
        op.inputs[-2:] == ("inner.linear.weight", "inner.linear.bias") for op in ops.values()
    )
    assert not any(op.kind == "buffer" for op in traced.graph.ops), "it stays with the module"
    assert_same_training(traced, model, toys.example(), loss)


@dataclasses.dataclass
class Result:
    logits: flow.Tensor
    note: str


class Named(dict):
    """A dict that is not made like one."""

    def __init__(self, required):
        super().__init__(value=required)


def test_results_may_be_dataclasses_and_dicts_of_other_classes():
    class Inner(nn.Module):
        def forward(self, named):
            return Result(F.gelu(named["value"]), "kept")

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.inner = nn.Linear(8, 5), Inner()

        def forward(self, x):
            result = self.inner(Named(self.linear(x)))
            assert result.note == "kept"
            return result

    def loss(output, target):
        return F.cross_entropy(output.logits, target)

    model = Outer()
    with pytest.warns(OpaqueWarning, match="inner runs"):
        traced = trace_with_state(model, *toys.example(), loss=loss, known=without_gelu)
    assert_same_training(traced, model, toys.example(), loss)
    result, _ = run_graph(traced, toys.example())
    assert isinstance(result, Result) and result.logits.is_eager


def test_it_runs_on_the_parameters_that_it_is_given():
    model = toys.Mlp()
    batchwise(model.first)
    traced = trace_with_state(model, toys.rows())
    weight = model.first.weight
    zeros = [flow.zeros(8, 8), flow.ones(8)]
    (result,) = traced.opaque["first/opaque"].call([toys.rows(), *zeros], flow.Tensor)
    assert result.tolist() == [[1.0] * 8] * 4
    assert model.first.weight is weight
    with pytest.raises(ValueError, match="first takes 1 tensors and 2 parameters, got 2"):
        traced.opaque["first/opaque"].call([toys.rows(), flow.zeros(8, 8)], flow.Tensor)


def test_tied_parameters_inside_are_replaced_at_all_places():
    model = batchwise(toys.Tied())
    traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy)
    (call,) = traced.opaque.values()
    assert "again.weight" not in call.params and "first.weight" in call.params
    assert_same_training(traced, model, toys.example(), F.cross_entropy)
    given = [flow.zeros(*traced.params[name].shape) for name in call.params]
    (result,) = call.call([toys.rows(), *given], flow.Tensor)
    assert np.abs(result.numpy()).max() == 0


@pytest.mark.parametrize("declared", [batchwise, opaque])
def test_declared_modules_are_opaque_without_a_warning(declared):
    model = nn.Sequential(declared(toys.Mlp()), nn.Linear(5, 5))
    traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy)
    (op,) = opaque_of(traced).values()
    assert op.name == "0/opaque" and op.attrs["batchwise"] is (declared is batchwise)
    assert_same_training(traced, model, toys.example(), F.cross_entropy)
    larger = trace_with_state(model, *toys.example(8), loss=F.cross_entropy)
    assert traced.graph.with_batch(8).fingerprint == larger.graph.fingerprint


def test_a_stopped_gradient_around_an_opaque_module_stays_stopped():
    """In a no_grad block a module that is one operator gets no gradient either."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = toys.Mlp(), toys.Mlp()

        def forward(self, x):
            with flow.no_grad():
                frozen = self.head(x * self.body.first.weight)
            return self.body(x) * frozen

    model = Around()
    batchwise(model.head)
    example = toys.example(8)
    traced = trace_with_state(model, *example, loss=F.cross_entropy)
    assert opaque_of(traced).keys() == {"head/opaque"}
    assert {op.kind for op in traced.graph.ops} >= {"stop_gradient"}
    assert not any(name.startswith("head") for name in traced.graph.needs_grad)
    assert_same_training(traced, model, example, F.cross_entropy)


def test_a_module_that_changes_its_buffers_goes_on_doing_so():
    flow.manual_seed(0)
    model, twin = toys.Averaging(), toys.Averaging()
    twin.load_state_dict(model.state_dict())
    with pytest.warns(OpaqueWarning, match="track runs as one .* a change of track.average"):
        traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy)
    assert model.track.seen.tolist() == [0.0], "the trace itself changes nothing"
    assert [op.attrs["module"] for op in opaque_of(traced).values()] == ["track"]
    for _ in range(3):
        result, _ = run_graph(traced, toys.example())
        np.testing.assert_allclose(result.numpy(), twin(toys.rows()).numpy(), rtol=1e-5)
    assert model.track.seen.tolist() == [3.0]
    np.testing.assert_allclose(model.track.average.numpy(), twin.track.average.numpy(), rtol=1e-5)


def test_a_module_that_shares_tensors_past_its_results_takes_its_surroundings_along():
    model = toys.Leaking()
    with pytest.warns(OpaqueWarning, match="around runs as one .* around.keeper shares"):
        traced = trace_with_state(model, *toys.example(), loss=F.cross_entropy, known=without_gelu)
    (op,) = opaque_of(traced).values()
    assert op.attrs["module"] == "around"
    assert_same_training(traced, model, toys.example(), F.cross_entropy)


def test_a_secondary_output_that_is_read_has_no_canonical_form():
    class Indices(nn.Module):
        def forward(self, x):
            values, indices = nn.AdaptiveMaxPool2d(2, return_indices=True)(x)
            return values + indices.float()

    image = flow.ones(2, 3, 4, 4)
    with pytest.warns(OpaqueWarning, match="a secondary output of operator adaptive_max_pool2d"):
        traced = trace_with_state(Indices(), image)
    result, _ = run_graph(traced, [image])
    np.testing.assert_array_equal(result.numpy(), Indices()(image).numpy())


def test_a_loss_that_reads_into_an_opaque_model_is_refused():
    model = toys.Leaking()

    def loss(output, target):
        kept = model.around.keeper.kept
        assert kept is not None
        return F.cross_entropy(F.gelu(output), target) + kept.sum()

    with pytest.raises(ValueError, match="shares tensors with the rest of the program"):
        trace_with_state(model, *toys.example(), loss=loss, known=without_gelu)
