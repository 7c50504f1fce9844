"""The rules on operators as the tracer gives them: every one of some small models is proven."""

import itertools
import random

import pytest

from autoddl.sbp.mesh import Mesh
from autoddl.sbp.oracle import fits
from autoddl.sbp.signature import OpSpec, signatures_of

from .operators.case import Arg, Case
from .proof import check

flow = pytest.importorskip("oneflow", reason="traces OneFlow operators")
nn = flow.nn
F = nn.functional

PRODUCTS = 2  # per operator
WITHOUT_ARITHMETIC = {"input", "param", "buffer"}


def ints(*shape):
    return flow.zeros(*shape, dtype=flow.int64)


def gpt():
    from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss

    return Gpt(1, 8, 2, 6, vocabulary=12, dropout=0.1), (ints(4, 6), ints(4, 6)), next_token_loss


def dlrm():
    from autoddl.runtime.oneflow.models.dlrm import Dlrm

    example = (flow.zeros(4, 6), ints(4, 3), flow.zeros(4))
    return Dlrm(6, [8, 12, 6], (12, 4), (8, 4)), example, F.binary_cross_entropy_with_logits


def vgg():
    from autoddl.runtime.oneflow.models.vgg import Vgg13

    model = Vgg13(8, 6, widths=(2, 4), dense=12)
    return model, (flow.zeros(4, 3, 8, 8), ints(4)), F.cross_entropy


def vit():
    from flowvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=2, num_classes=6
    )
    return model, (flow.zeros(4, 3, 8, 8), ints(4)), F.cross_entropy


def resnet():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(4)
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.dense = nn.Linear(4, 6)

        def forward(self, x):
            x = flow.relu(self.norm(self.conv(x)) + x)
            return self.dense(self.pool(x).flatten(1))

    return Residual(), (flow.zeros(4, 4, 6, 6), ints(4)), F.cross_entropy


def calls():
    """What people write between layers."""

    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(12, 12)
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x):
            x = self.norm(self.dense(x).reshape(4, 4, 6, 2)).flatten(2)
            left, right = x.chunk(2, dim=2)
            x = flow.cat([F.silu(left), flow.sigmoid(right) * left], dim=-1)
            x = flow.stack([x[:, 0], x[:, 1:].mean(dim=1)], dim=1)
            x = flow.where(x > 0, x, flow.zeros_like(x)) + x.max(dim=1, keepdim=True)[0]
            x = x.masked_fill(flow.tril(flow.ones(2, 12)) == 0, -1.0)
            x = flow.einsum("bid,bjd->bij", x, F.normalize(x, dim=-1))
            x = (x - x.mean()) / (x.var(dim=-1, keepdim=True) + 1.0).sqrt()
            return (x**2).sum(dim=-1).clamp(-1.0, 1.0).unsqueeze(-1).expand(4, 2, 3)

    return Calls(), (flow.zeros(4, 4, 12), flow.zeros(4, 2, 3)), nn.MSELoss()


def case_of(op: OpSpec) -> Case:
    """Random inputs of the operator's specs; numbers below every size that they could index."""
    below = min((n for t in op.inputs[:1] for n in t.shape), default=2)
    draws = [
        Arg(t, lambda rng, s: rng.uniform(0.1, 0.9, s))
        if t.is_float
        else Arg(t, lambda rng, s: rng.integers(0, below, s))
        for t in op.inputs
    ]
    return Case(op.kind, op, tuple(draws))


def operators(entry) -> list[OpSpec]:
    from autoddl.runtime.oneflow.trace.trace import trace

    model, example, loss = entry()
    graph = trace(model, *example, loss=loss).with_forks()
    specs = {repr(graph.spec(op)): graph.spec(op) for op in graph.ops}
    return [spec for spec in specs.values() if spec.kind not in WITHOUT_ARITHMETIC]


@pytest.mark.parametrize(
    "entry",
    [gpt, dlrm, resnet, calls, *(pytest.param(f, marks=pytest.mark.full) for f in (vgg, vit))],
    ids=lambda f: f.__name__,
)
def test_every_operator_of_a_traced_model(entry):
    shuffle = random.Random(0)
    for op in operators(entry):
        assert op.kind != "opaque", f"{entry.__name__} has an operator without a rule"
        case, found = case_of(op), signatures_of(op)
        for signature in found:
            if fits(op, Mesh(2, 1), (signature,)):
                check(case, Mesh(2, 1), (signature,))
        pairs = [p for p in itertools.product(found, repeat=2) if fits(op, Mesh(4, 1), p)]
        for pair in shuffle.sample(pairs, min(PRODUCTS, len(pairs))):
            check(case, Mesh(4, 1), pair)
