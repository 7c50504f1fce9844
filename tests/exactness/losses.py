"""Losses that are no mean of independent rows, in one micro-batch and in several.

As a worker: trains each case of a JSON list by a random plan on one mesh, or in pipeline stages,
and compares losses, parameters, buffers and results with the whole batch on one device.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn
import oneflow.nn.functional as F

from autoddl.graph.batch_norm import with_batch_norm
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.jobs.session import share_text
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import Transformer, floats, whole

ROWS, STEPS, CLASSES = 8, 3, 6
TOLERANCE = 2e-5


class Dense(nn.Module):
    """A perceptron whose loss may take its first weight as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.second(F.gelu(self.first(x)))


class Decayed(Dense):
    """Gives its weights' squares beside the result."""

    def forward(self, x: Any) -> Any:
        return super().forward(x), (self.first.weight**2).sum()


class Residual(nn.Module):
    """Convolutions with BatchNorm and a residual, like a small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 16, CLASSES)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm1(self.stem(x)))
        x = F.relu(x + self.norm2(self.conv(x)))
        return self.last(x.flatten(1))


class Attending(Dense):
    """Each row is a mixture of the rows of its batch, also in evaluation."""

    def forward(self, x: Any) -> Any:
        x = super().forward(x)
        return flow.matmul(flow.softmax(flow.matmul(x, x.transpose(0, 1)), dim=-1), x)


class TokensFirst(Dense):
    """The sequence leads, and its tokens and rows are one dim on the way."""

    def forward(self, x: Any) -> Any:
        rows, tokens, _ = x.shape
        flat = x.transpose(0, 1).reshape(tokens * rows, -1)
        return super().forward(flat).reshape(tokens, rows, -1).transpose(0, 1)


def ignoring(out: Any, target: Any) -> Any:
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), target.reshape(-1), ignore_index=1)


def masked(out: Any, target: Any) -> Any:
    w = (target > 0.3).to(flow.float32)
    return ((out - target) ** 2 * w).sum() / w.sum()


def counted(out: Any, target: Any) -> Any:
    mask = target > 0.3
    return ((out - target) ** 2 * mask).sum() / mask.sum().clamp(min=1)


def summed(out: Any, target: Any) -> Any:
    return nn.CrossEntropyLoss(reduction="sum")(out, target)


def decayed(out: Any, target: Any) -> Any:
    out, squares = out
    return F.cross_entropy(out, target, reduction="sum") + 0.1 * squares + 3 * (out**2).mean()


def contrastive(out: Any, target: Any) -> Any:
    out = F.normalize(out, dim=1)
    return F.cross_entropy(flow.matmul(out, out.transpose(0, 1)) / 0.5, target)


def spread(out: Any, target: Any) -> Any:
    """The root of a mean over the batch."""
    return flow.sqrt(((out - target) ** 2).mean())


def labels(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 8), whole(rng, CLASSES, n)


def values(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 8), floats(rng, n, CLASSES)


def words(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return whole(rng, 32, n, 8), whole(rng, 4, n, 8)


def sequences(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 3, 8), floats(rng, n, 3, CLASSES)


def images(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    return floats(rng, n, 3, 4, 4), whole(rng, CLASSES, n)


WEIGHTED = nn.CrossEntropyLoss(weight=flow.arange(1, CLASSES + 1).to(flow.float32))
Made = tuple[Callable[[], nn.Module], Callable[..., Any], Callable[..., tuple[Any, Any]]]
EXACT: dict[str, Made] = {
    "ignoring": (Dense, ignoring, labels),
    "ignoring words": (Transformer, ignoring, words),
    "weighted": (Dense, WEIGHTED, labels),
    "masked": (Dense, masked, values),
    "counted": (Dense, counted, values),
    "summed": (Dense, summed, labels),
    "tokens first": (TokensFirst, nn.MSELoss(), sequences),
    "decayed": (Decayed, decayed, labels),
}
WHOLE: dict[str, Made] = {
    "contrastive": (Dense, contrastive, labels),
    "spread": (Dense, spread, values),
    "attending": (Attending, summed, labels),
    "residual": (Residual, nn.CrossEntropyLoss(), images),
}
LOSSES = {**EXACT, **WHOLE}


def build(name: str) -> tuple[nn.Module, Callable[..., Any], Callable[[int, int], tuple[Any, Any]]]:
    make, loss, batch = LOSSES[name]
    flow.manual_seed(7)
    return make(), loss, lambda step, rows: batch(np.random.default_rng(step), rows)


def sgd(parameters: Any) -> Any:
    return flow.optim.SGD(parameters, lr=0.01, momentum=0.9)


def alone(name: str, parts: int) -> tuple[list[float], dict[str, np.ndarray], list[np.ndarray]]:
    """On one device; with parts, the mean of the losses of the batch's parts."""
    model, loss, batch = build(name)
    optimizer, losses = sgd(model.parameters()), []
    for step in range(STEPS):
        total = 0.0
        for m in range(parts):
            part = slice(m * ROWS // parts, (m + 1) * ROWS // parts)
            x, y = (t.numpy()[part] for t in batch(step, ROWS))
            value = loss(model(flow.tensor(x)), flow.tensor(y)) / parts
            value.backward()
            total += float(value)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    model.eval()
    results = [first(model(batch(9, n)[0])) for n in (ROWS, 2 * ROWS)]
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}, results


def first(out: Any) -> np.ndarray:
    return (out[0] if isinstance(out, tuple) else out).numpy()


def trainer_of(case: dict[str, Any]) -> tuple[Any, Callable[[int, int], tuple[Any, Any]]]:
    model, loss, batch = build(case["name"])
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    traced = dataclasses.replace(
        traced, graph=with_batch_norm(traced.graph, case.get("batch_norm", "batch"))
    )
    cluster, parts = cluster_of(case["nodes"], case["gpus"]), case["parts"]
    if case.get("stages") is None:
        plan = random_plan(traced.graph, cluster, case.get("seed", 0), micro_batches=parts)
        return build_trainer(traced, plan, sgd, debug=True), batch

    def make() -> str:
        options = PlanOptions(
            stages=case["stages"],
            schedule=case.get("schedule", "1f1b"),
            batch_norm=case.get("batch_norm", "batch"),
            micro_batches=parts,
        )
        plan = find_plan(traced.graph, cluster, options)
        return plan.dumps()

    plan = Plan.from_json(json.loads(share_text(make, OneFlow())))
    return build_trainer(traced, plan, sgd, debug=True), batch


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    apart = sum(float(((found[k].astype(float) - v) ** 2).sum()) for k, v in expected.items())
    size = sum(float((v.astype(float) ** 2).sum()) for v in expected.values())
    return (apart / size) ** 0.5


def run(case: dict[str, Any]) -> None:
    parts = case["parts"] if case.get("batch_norm") == "micro_batch" else 1
    losses, state, results = alone(case["name"], parts)
    trainer, batch = trainer_of(case)
    found = [float(trainer.step(*batch(step, ROWS))) for step in range(STEPS)]
    worst = max(abs(a / b - 1) for a, b in zip(found, losses, strict=True))
    evaluated = [first(trainer.eval_step(batch(9, n)[0])) for n in (ROWS, 2 * ROWS)]
    apart = distance({k: v.numpy() for k, v in trainer.state_dict().items()}, state)
    wrong = max(np.abs(a - b).max() for a, b in zip(evaluated, results, strict=True))
    if rank() == 0:
        print(f"{case}: loss {worst:.1e} state {apart:.1e} result {wrong:.1e}", flush=True)
    assert worst < TOLERANCE and apart < TOLERANCE and wrong < 1e-4, (case, found, losses)


def main() -> None:
    for case in json.loads(sys.argv[1]):
        run(case)


if __name__ == "__main__":
    main()
