"""The models of the exactness matrix, their data, and the plans that are forced on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn

from autoddl.graph.graph import Graph
from autoddl.planner import baselines
from autoddl.planner.tables.group_table import WHOLE_SPACE, Space
from autoddl.sbp.mesh import Mesh

Batch = tuple[Any, ...]
Built = tuple[nn.Module, Callable[..., Any], Callable[[int], Batch]]

OptimizerFn = Callable[[Any], Any]
# Relative tolerance of each loss; parameters are held to PARAMETER_TOLERANCE.
LOSS_TOLERANCE = {"momentum": 1e-5, "adam": 1e-4}
PARAMETER_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    """A model with batches of `rows`; `build` gives (model, loss, step number -> batch).

    The learning rates are such that ten steps are not chaotic: at larger ones a run with its rows
    in another order departs from itself (test_at_larger_steps_one_process_departs_from_itself).
    """

    rows: int
    build: Callable[[int], Built]
    adam_lr: float = 1e-3
    sgd_lr: float = 1e-2

    def optimizer(self, name: str) -> OptimizerFn:
        if name == "adam":
            return lambda p: flow.optim.Adam(p, lr=self.adam_lr)
        return lambda p: flow.optim.SGD(p, lr=self.sgd_lr, momentum=0.9)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def tensor(array: np.ndarray) -> Any:
    return flow.tensor(np.ascontiguousarray(array))


def images(shape: tuple[int, ...], classes: int) -> Callable[[int], Batch]:
    def batch(step: int) -> Batch:
        rng = np.random.default_rng(1000 + step)
        x = rng.standard_normal(shape).astype(np.float32)
        return tensor(x), tensor(rng.integers(0, classes, shape[0]))

    return batch


def classifier(make: Callable[[], nn.Module], side: int, classes: int) -> Callable[[int], Built]:
    def build(rows: int) -> Built:
        return (
            without_dropout(make()),
            nn.CrossEntropyLoss(),
            images((rows, 3, side, side), classes),
        )

    return build


def gpt(rows: int) -> Built:
    from models.gpt import gpt_small

    model, example, loss = gpt_small(batch=rows)

    def batch(step: int) -> Batch:
        rng = np.random.default_rng(1000 + step)
        return tuple(tensor(rng.integers(0, 256, tuple(t.shape))) for t in example)

    return without_dropout(model), loss, batch


def mlp(rows: int) -> Built:
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)
    )

    def batch(step: int) -> Batch:
        rng = np.random.default_rng(1000 + step)
        x, y = (rng.standard_normal((rows, 16)).astype(np.float32) for _ in range(2))
        return tensor(x), tensor(y)

    return model, nn.MSELoss(), batch


def dlrm(rows: int) -> Built:
    from models.dlrm import dlrm_small

    model, example, loss = dlrm_small(batch=rows)

    def batch(step: int) -> Batch:
        rng = np.random.default_rng(1000 + step)
        dense, sparse, target = (tuple(t.shape) for t in example)
        return (
            tensor(rng.standard_normal(dense).astype(np.float32)),
            tensor(rng.integers(0, 64, sparse)),
            tensor(rng.integers(0, 2, target).astype(np.float32)),
        )

    return model, loss, batch


def vgg13_small(rows: int) -> Built:
    from models.vgg import vgg13_small as entry

    model, example, loss = entry(batch=rows)
    return without_dropout(model), loss, images(tuple(example[0].shape), 10)


def flowvision_model(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import flowvision

        return getattr(flowvision.models, name)(num_classes=10)

    return make


def narrow_vgg13() -> nn.Module:
    """flowvision's VGG13 with dense layers of 512: eight replicas with Adam fit a test machine."""
    model = flowvision_model("vgg13")()
    for index, (before, after) in {0: (25088, 512), 3: (512, 512), 6: (512, 10)}.items():
        model.classifier[index] = nn.Linear(before, after)
    return model


def batch_norms() -> nn.Module:
    """Convolutions with BatchNorm and a residual; a whole ResNet-18 is chaotic from its start."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(16)

        def forward(self, x: Any) -> Any:
            return flow.relu(x + self.norm(self.conv(x)))

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(),
        Residual(),
        nn.AdaptiveAvgPool2d((2, 2)),
        nn.Flatten(1),
        nn.Linear(64, 10),
    )


def vit() -> nn.Module:
    from flowvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=192, depth=2, num_heads=3, num_classes=10
    )


BASELINES = ("ZeRO", "Megatron", "Megatron+ZeRO", "SUMMA")

CASES = {
    "mlp": Case(16, mlp),
    "gpt": Case(16, gpt),
    "vgg13_small": Case(16, vgg13_small),
    "dlrm": Case(16, dlrm),
    "alexnet": Case(8, classifier(flowvision_model("alexnet"), 64, 10), adam_lr=1e-5),
    "vgg13": Case(8, classifier(narrow_vgg13, 32, 10), adam_lr=1e-5, sgd_lr=1e-3),
    "vit": Case(8, classifier(vit, 32, 10)),
    "batch_norms": Case(16, classifier(batch_norms, 16, 10)),
}


def space(scheme: str, graph: Graph, mesh: Mesh) -> Space:
    """The restriction that forces `scheme`: data_parallel or letters such as B-S1, else none."""
    if scheme in ("searched", "random"):
        return WHOLE_SPACE
    if scheme in ("data_parallel", "zero", "zero-again"):
        return baselines.data_parallel(graph)
    return baselines.forced(graph, mesh, scheme.split("-"))
