"""Published models trace without opaque parts, at any batch, and compute the same."""

import oneflow as flow
import oneflow.nn as nn
import pytest

from autoddl.runtime.oneflow.trace.job.meta import storage_free
from autoddl.runtime.oneflow.trace.trace import trace, trace_with_state
from tests.runtime.oneflow.trace.evaluate import assert_same_training

models = pytest.importorskip("flowvision.models", reason="needs flowvision")


def images(batch, size):
    return flow.randn(batch, 3, size, size), flow.arange(batch) % 10


@pytest.mark.parametrize(
    "name, size",
    [
        pytest.param("alexnet", 64, marks=pytest.mark.full),
        ("vgg13", 32),
        ("resnet18", 32),
        ("vit_tiny_patch16_224", 224),
        pytest.param("densenet121", 32, marks=pytest.mark.full),
        pytest.param("efficientnet_b0", 32, marks=pytest.mark.full),
        pytest.param("pvt_tiny", 224, marks=pytest.mark.full),
        pytest.param("swin_tiny_patch4_window7_224", 224, marks=pytest.mark.full),
    ],
)
@pytest.mark.filterwarnings("error::autoddl.runtime.traced.OpaqueWarning")
def test_every_operator_is_known_and_follows_the_batch(name, size):
    with storage_free():
        model = getattr(models, name)(num_classes=10)
    loss = nn.CrossEntropyLoss()
    graph = trace(model, *images(4, size), loss=loss)
    used = {op.attrs["name"] for op in graph.params}
    assert used == {name for name, _ in model.named_parameters()}
    larger = trace(model, *images(6, size), loss=loss)
    assert graph.with_batch(6).fingerprint == larger.fingerprint


@pytest.mark.parametrize(
    "name", ["resnet18", pytest.param("squeezenet1_0", marks=pytest.mark.full)]
)
def test_the_graph_computes_what_the_model_computes(name):
    flow.manual_seed(0)
    model = getattr(models, name)(num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    example, loss = images(2, 64), nn.CrossEntropyLoss()
    traced = trace_with_state(model, *example, loss=loss)
    assert_same_training(traced, model, example, loss)
