"""The models of the exactness matrix, and their data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn

from autoddl.runtime.oneflow.models.dlrm import dlrm_small
from autoddl.runtime.oneflow.models.gpt import gpt_small
from autoddl.runtime.oneflow.models.moe import gpt_moe_small
from autoddl.runtime.oneflow.models.vgg import vgg13_small
from tests.runtime import training, user_models

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


def of_papers(make: Callable[..., Any], *tops: int) -> Callable[[int], Built]:
    """Each tensor of a batch has numbers below its `tops`, or is normal where that is 0."""

    def build(rows: int) -> Built:
        model, example, loss = make(batch=rows)
        kinds = [(tuple(t.shape), t.numpy().dtype, n) for t, n in zip(example, tops, strict=True)]

        def batch(step: int) -> Batch:
            rng = np.random.default_rng(1000 + step)
            drawn = (rng.integers(0, n, s) if n else rng.standard_normal(s) for s, _, n in kinds)
            return tuple(tensor(x.astype(d)) for x, (_, d, _) in zip(drawn, kinds, strict=True))

        return without_dropout(model), loss, batch

    return build


def small(name: str) -> Callable[[int], Built]:
    def build(rows: int) -> Built:
        model, loss, batch = training.build(name)
        return model, loss, lambda step: batch(1000 + step, rows)

    return build


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


def vit() -> nn.Module:
    from flowvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=192, depth=2, num_heads=3, num_classes=10
    )


def mixture(experts: int, top: int) -> Callable[[int], Built]:
    return of_papers(partial(gpt_moe_small, experts=experts, top=top), 256, 256)


def densenet() -> nn.Module:
    from flowvision.models.densenet import DenseNet

    return DenseNet(8, (2, 2, 2, 2), 16, num_classes=10)


def res2net() -> nn.Module:
    """Without the last layers: with them one process departs from itself, rows in another order."""
    from flowvision.models.res2net import Bottle2neck, Res2Net

    model = Res2Net(Bottle2neck, [1, 1, 1, 1], 8, 4, 10)
    model.layer3, model.layer4 = nn.Identity(), nn.Identity()
    model.fc = nn.Linear(512, 10)
    return model


def cswin() -> nn.Module:
    from flowvision.models.cswin import CSWinTransformer

    heads: Any = [2] * 4  # whose type flowvision tells wrongly
    return CSWinTransformer(
        img_size=32, num_classes=10, embed_dim=16, depth=[1] * 4, split_size=[1, 2, 1, 1],
        num_heads=heads, mlp_ratio=2.0,
    )  # fmt: skip


CASES = {
    "wide": Case(16, small("wide")),
    "gpt": Case(16, of_papers(gpt_small, 256, 256)),
    "vgg13_small": Case(16, of_papers(vgg13_small, 0, 10)),
    "dlrm": Case(16, of_papers(dlrm_small, 0, 64, 2)),
    "alexnet": Case(8, classifier(flowvision_model("alexnet"), 64, 10), adam_lr=1e-5),
    "vgg13": Case(8, classifier(narrow_vgg13, 32, 10), adam_lr=1e-5, sgd_lr=1e-3),
    "vit": Case(8, classifier(vit, 32, 10)),
    # a whole ResNet-18 is chaotic from its start
    "convnet": Case(16, small("convnet")),
}
CASES |= {
    f"moe-{experts}-top-{top}": Case(16, mixture(experts, top))
    for experts in (4, 5, 6, 7, 8)
    for top in (1, 2)
}
USERS = {
    **{name: Case(8, small(name)) for name in user_models.USERS},
    "densenet": Case(8, classifier(densenet, 32, 10)),
    "res2net": Case(8, classifier(res2net, 64, 10), sgd_lr=1e-4),
    "cswin": Case(8, classifier(cswin, 32, 10)),
}


def case_of(name: str) -> Case:
    """The case of a name; `gpt:36` has batches of 36 rows instead of its own."""
    own, _, rows = name.partition(":")
    case = (CASES | USERS)[own]
    return replace(case, rows=int(rows)) if rows else case
