"""Trains one model of the matrix alone (one process) or by several plans, and keeps what came out.

Arguments: alone MODEL OPTIMIZER STEPS FILE
           shuffled MODEL OPTIMIZER LEARNING_RATE STEPS SEED...
           together MODEL OPTIMIZER STEPS FILE NODES GPUS MICRO_BATCHES SCHEME...
`alone` writes FILE (npz: losses, state, which elements have a gradient); `together` compares with
it and prints a JSON line per scheme (`schemes.py`); SCHEME@3-1 divides tensors among hosts by
shares. `shuffled` shows what rounding alone does: one process, with the rows of each batch in
another order and cut into two halves whose gradients add up, against the same process without that.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

import numpy as np
import oneflow as flow

from autoddl.cluster.spec import Cluster
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from tests.exactness.cases import case_of
from tests.exactness.schemes import ZERO, plan_of

LAPTOP = "laptop"
NO_GRADIENT = 1e-6  # of the largest in the tensor: what rounding leaves of a gradient that is zero


def alone(name: str, optimizer: str, steps: int, file: str) -> None:
    flow.manual_seed(0)
    case = case_of(name)
    model, loss, batch = case.build(case.rows)
    made = case.optimizer(optimizer)(model.parameters())
    largest = {k: np.zeros(tuple(p.shape), np.float32) for k, p in model.named_parameters()}
    initial = {f"initial.{k}": v.numpy().copy() for k, v in model.state_dict().items()}
    losses = []
    for step in range(steps):
        *inputs, target = batch(step)
        value = loss(model(*inputs), target)
        value.backward()
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                largest[key] = np.maximum(largest[key], np.abs(parameter.grad.numpy()))
        made.step()
        made.zero_grad()
        losses.append(float(value))
    peak = max(float(v.max()) for v in largest.values())
    kept = {f"kept.{k}": v > NO_GRADIENT * peak for k, v in largest.items()}
    state = {f"state.{k}": v.numpy() for k, v in model.state_dict().items()}
    np.savez(file, losses=np.array(losses), **state, **kept, **initial)


def shuffled(name: str, optimizer: str, rate: float, steps: int, seeds: Sequence[int]) -> None:
    case = dataclasses.replace(case_of(name), adam_lr=rate, sgd_lr=rate)

    def train(seed: int | None) -> np.ndarray:
        flow.manual_seed(0)
        model, loss, batch = case.build(case.rows)
        made = case.optimizer(optimizer)(model.parameters())
        losses = []
        for step in range(steps):
            rows = np.arange(case.rows)
            if seed is not None:
                rows = np.random.default_rng((seed, step)).permutation(case.rows)
            parts = np.split(rows, 1 if seed is None else 2)
            total = 0.0
            for part in parts:
                *inputs, target = (flow.tensor(x.numpy()[part]) for x in batch(step))
                value = loss(model(*inputs), target) / len(parts)
                value.backward()
                total += float(value)
            made.step()
            made.zero_grad()
            losses.append(total)
        return np.array(losses)

    plain = train(None)
    apart = [float(np.max(np.abs(train(seed) / plain - 1))) for seed in seeds]
    print(json.dumps({"losses": apart}), flush=True)


def squares(found: np.ndarray, expected: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Sums of (found - expected)^2 and expected^2 where `kept`, a million elements at a time."""
    apart = whole = 0.0
    flat = [x.reshape(-1) for x in (found, expected, kept)]
    for start in range(0, found.size, 2**20):
        a, b, mask = (x[start : start + 2**20] for x in flat)
        b = b.astype(float) * mask
        apart += float(((a * mask - b) ** 2).sum())
        whole += float((b**2).sum())
    return apart, whole


def together(
    name: str, optimizer: str, steps: int, file: str, nodes: int, gpus: int, parts: int, scheme: str
) -> None:
    reference = np.load(file)
    case = case_of(name)
    model, loss, batch = case.build(case.rows)
    model.load_state_dict({k: flow.tensor(reference[f"initial.{k}"]) for k in model.state_dict()})
    cluster = Cluster.load(LAPTOP).with_shape(nodes=nodes, gpus_per_node=gpus)
    traced = trace_with_state(model, *batch(0), loss=loss)
    asked, _, shares = scheme.partition("@")
    cluster = cluster.with_shares(tuple(map(int, shares.split("-"))) if shares else ())
    kind = asked.partition(":")[0]

    def make() -> str:
        return plan_of(asked, traced.graph, cluster, optimizer, parts).dumps()

    def train(plan: Plan) -> tuple[list[float], dict[str, np.ndarray]]:
        trainer = build_trainer(traced, plan, case.optimizer(optimizer))
        assert trainer._job.groups.mesh in [stage.mesh for stage in plan.stages]  # with its shares
        losses = []
        for step in range(steps):
            losses.append(float(trainer.step(*batch(step))))
            if kind in ZERO and step == steps // 2:
                trainer.load_state_dict(trainer.state_dict())
        return losses, {key: value.numpy() for key, value in trainer.state_dict().items()}

    plan = Plan.loads(share_text(make, OneFlow()))
    losses, state = train(plan)
    if kind == "turns":
        by_one = train(plan.changed(turns=(), in_flight=1))
        assert by_one[0] == losses, (by_one[0], losses)
        assert all(np.array_equal(by_one[1][key], value) for key, value in state.items()), scheme
    apart = size = 0.0
    for key, value in state.items():
        if f"kept.{key}" in reference:
            compared = squares(value, reference[f"state.{key}"], reference[f"kept.{key}"])
            apart, size = apart + compared[0], size + compared[1]
    if rank() == 0:
        alone_losses = reference["losses"]
        worst = float(np.max(np.abs(np.array(losses) / alone_losses - 1)))
        ops = [op for stage in plan.stages for op in stage.ops.values()]
        split = sum(any(p.is_split for p in op.ins[0]) for op in ops if op.ins)
        stages = sorted({e.zero_stage for stage in plan.stages for e in stage.edges.values()})
        print(
            json.dumps(
                {"scheme": scheme, "losses": worst, "parameters": (apart / size) ** 0.5,
                 "split_ops": split, "ops": len(ops), "stages": stages,
                 "blocks": len(plan.recomputed),
                 "first": losses[0], "last": losses[-1]}
            ),
            flush=True,
        )  # fmt: skip


def main() -> None:
    mode, name, optimizer, *rest = sys.argv[1:]
    if mode == "shuffled":
        rate, steps, *seeds = rest
        shuffled(name, optimizer, float(rate), int(steps), [int(seed) for seed in seeds])
        return
    steps, file, *rest = rest
    if mode == "alone":
        alone(name, optimizer, int(steps), file)
        return
    nodes, gpus, parts, *schemes = rest
    for scheme in schemes:
        together(name, optimizer, int(steps), file, int(nodes), int(gpus), int(parts), scheme)


main()
