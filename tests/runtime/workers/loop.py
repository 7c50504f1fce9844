"""Whole training loops, by plans of all kinds, beside the same loops on one device.

Arguments: one JSON list of cases (see `DEFAULTS`). Prints a line for each that is equal.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field

import numpy as np

from autoddl.planner import baselines
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.calling import as_arguments
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.update.parameters import Parameters
from tests.framework import build_trainer, flow, new_backend, trace_with_state
from tests.runtime.dict_models import called, joined
from tests.runtime.random_plans import cluster_of, random_plan, with_zero
from tests.runtime.training import arrays
from tests.runtime.training import build as build_as_it_is

ROWS = 8
DEFAULTS = {
    "nodes": 2,
    "gpus": 2,
    "micro_batches": 1,
    "seed": None,  # of a plan that is drawn; None: the plan that is found
    "zero": "",  # data parallel, with parameters stored by this stage
    "stages": None,
    "chunks": 1,
    "optimizer": "sgd",
    "clip": None,
    "ema": None,
    "hook": False,
    "short": ROWS,  # rows of every third batch
    "scored": [],  # rows of each batch of a data set that is evaluated
    "steps": 3,
    "debug": False,
    "then": [],  # other plans, by which training goes on, each for as many steps, from the state
    "frozen": [],  # modules whose parameters are not trained
    "alone": True,  # compared with one device, which has other random numbers
    "exact": False,  # the one device computes in float64; twice as far as float32 there may be ours
    "uninterrupted": False,  # compared, to the bit, with the first plan for all steps
}
LIMIT = 1e-6


def in_groups(parameters):
    """Only matrices decay. A large epsilon keeps rounding of small gradients small."""
    named = list(parameters.named())
    return flow.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for n, p in named if "bias" in n or p.ndim < 2], "lr": 2e-2},
        ],
        lr=1e-2,
        weight_decay=0.0,
        eps=1e-3,
    )


OPTIMIZERS = {
    "sgd": lambda p: flow.optim.SGD(p, lr=0.05, momentum=0.9),
    "groups": in_groups,
    "adam": lambda p: flow.optim.Adam(p, lr=1e-3, eps=1e-3),
}


def hook(named):
    """Leaves most biases alone, and is no linear function of the gradient."""
    for name, parameter in named:
        if "bias" in name:
            parameter.grad = None
        elif "weight" in name:
            parameter.grad = parameter.grad.clamp(-1e-2, 1e-2) + 0.1 * parameter
            parameter.grad.mul_(0.5)


def schedule(optimizer):
    return flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


@dataclass
class Run:
    """What a loop has seen, step by step, and the state at its end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    state: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    averages: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    scores: dict[str, float] = field(default_factory=dict)
    result: np.ndarray | None = field(default=None, repr=False)  # of evaluation with the averages


def above(out, target):
    return (out["logits"] if isinstance(out, dict) else out) > 0.1


def squares(out, target):
    out = out["hidden"] if isinstance(out, dict) else out
    return (out**2).sum(), (out * 0 + 1).sum()


def data_set(case, batch):
    return [batch(step + 20, count) for step, count in enumerate(case["scored"])]


def rows(case, step):
    return case["short"] if step % 3 == 2 else ROWS


def build(name, frozen):
    """With small embeddings: large logits alone put 1e-6 of rounding into the gradients."""
    model, loss, batch = build_as_it_is(name)
    for parameter, value in model.named_parameters():
        value.requires_grad_(parameter.split(".")[0] not in frozen)
    for module in model.modules():
        if isinstance(module, flow.nn.Embedding):
            module.weight.data.mul_(0.1)
    return model, loss, batch


def clip(model, limit) -> float:
    """As `clip_grad_norm_` does, with a norm in double precision."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = float(np.sqrt(sum((g.numpy().astype(float) ** 2).sum() for g in gradients)))
    for gradient in gradients:
        gradient.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm


def in_float64(batch):
    def exactly(step, count):
        given = batch(step, count)
        return tuple(t.to(flow.float64) if t.dtype == flow.float32 else t for t in given)

    return exactly


def alone(case) -> Run:
    model, loss, batch = build(case["model"], case["frozen"])
    if case["exact"]:
        model, batch = model.to(flow.float64), in_float64(batch)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    made, run = OPTIMIZERS[case["optimizer"]](Parameters(trained)), Run()
    scheduler = schedule(made)
    averages = {n: p.detach().numpy().astype(float) for n, p in trained}
    for step in range(case["steps"] * (1 + len(case["then"]))):
        _, value = called(model, loss, batch(step, rows(case, step)))
        value.backward()
        if case["hook"]:
            with flow.no_grad():
                hook(trained)
        if case["clip"] is not None:
            run.norms.append(clip(model, case["clip"]))
        made.step()
        for n, p in trained:
            averages[n] += (1 - (case["ema"] or 1)) * (p.detach().numpy() - averages[n])
        scheduler.step()
        made.zero_grad()
        run.losses.append(float(value))
    run.state = {k: v.copy() for k, v in arrays(model).items()}
    if case["scored"]:
        output, value = called(model.eval(), loss, joined(data_set(case, batch)))
        total, count = squares(output, None)
        run.scores = {
            "loss": float(value),
            "above": float(above(output, None).numpy().mean()),
            "squares": float(total) / float(count),
        }
    if case["ema"] is not None:
        values = {n: flow.tensor(averages[n], dtype=p.dtype) for n, p in trained}
        model.load_state_dict({**model.state_dict(), **values})
        model.eval()
        run.averages, run.result = arrays(model), model(*batch(9, ROWS)[:-1]).detach().numpy()
    return run


def plan_of(case, graph) -> Plan:
    """Made on rank 0 and shared."""
    where, parts = cluster_of(case["nodes"], case["gpus"]), case["micro_batches"]

    def make() -> str:
        if case["zero"]:  # data parallel
            options = PlanOptions(micro_batches=parts, baselines=False)
            plan = find_plan(graph, where, options, space=baselines.data_parallel(graph))
            return with_zero(plan, case["zero"]).dumps()
        if case["seed"] is not None:
            return random_plan(graph, where, case["seed"], micro_batches=parts).dumps()
        staged = {}
        if case["stages"]:
            schedule = "1f1b" if case["chunks"] == 1 else "interleaved-1f1b"
            staged = {"stages": case["stages"], "chunks": case["chunks"], "schedule": schedule}
        options = PlanOptions(micro_batches=parts, baselines=False, **staged)
        return find_plan(graph, where, options).dumps()

    return Plan.loads(share_text(make, new_backend()))


def together(case) -> Run:
    """By the case's plan and those that follow, each of which has a trainer of its own."""
    run, folder = Run(), share_text(tempfile.mkdtemp, new_backend())
    for then in ({}, *case["then"]):
        model, loss, batch = build(case["model"], case["frozen"])
        traced = trace_with_state(model, *as_arguments(batch(0, ROWS)), loss=loss)
        trainer = build_trainer(
            traced, plan_of({**case, **then}, traced.graph), OPTIMIZERS[case["optimizer"]],
            debug=case["debug"], clip_grad_norm=case["clip"], ema_decay=case["ema"],
        )  # fmt: skip
        if case["hook"]:
            trainer.after_backward(hook)
        scheduler = schedule(trainer.optimizer)
        if progress := trainer.load(folder, missing_ok=True):
            scheduler.load_state_dict(progress)
        assert trainer.steps == len(run.losses)
        for _ in range(case["steps"]):
            given = batch(trainer.steps, rows(case, trainer.steps))
            run.losses.append(float(trainer.step(*as_arguments(given))))
            scheduler.step()
            if trainer.grad_norm is not None:
                run.norms.append(trainer.grad_norm)
        trainer.save(folder, scheduler.state_dict(), keep=1)
        run.state = arrays(trainer)
        if case["scored"]:
            metrics = {"above": above, "squares": squares}
            run.scores = trainer.evaluate(data_set(case, batch), metrics)
        if case["ema"] is not None:
            run.averages = {k: v.numpy() for k, v in trainer.ema_state_dict().items()}
            with trainer.averaged():
                run.result = trainer.eval_step(*batch(9, ROWS)[:-1]).numpy()
            assert all(np.array_equal(v, run.state[k]) for k, v in arrays(trainer).items())
    if rank() == 0:
        shutil.rmtree(folder)
    return run


def apart(found: Run, expected: Run) -> list[float]:
    """Relative differences: the largest of losses and norms; of states, averages and results."""
    pairs = (found.losses, expected.losses), (found.norms, expected.norms)
    values = [max((abs(a / b - 1) for a, b in zip(*p, strict=True)), default=0.0) for p in pairs]
    values.append(distance(found.state, expected.state))
    assert found.scores.keys() == expected.scores.keys()
    values += [abs(found.scores[k] / v - 1) for k, v in expected.scores.items()]
    if expected.result is not None:
        values.append(distance(found.averages, expected.averages))
        values.append(distance({"result": found.result}, {"result": expected.result}))
    return values


def distance(found, expected) -> float:
    """The norm of the difference of named arrays, relatively."""
    assert found.keys() == expected.keys()
    ours, theirs = (
        np.concatenate([arrays[k].astype(float).ravel() for k in sorted(arrays)])
        for arrays in (found, expected)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def main() -> None:
    for given in json.loads(sys.argv[1]):
        assert given.keys() <= {"model", *DEFAULTS}, given
        case = {**DEFAULTS, **given}
        found, differences = together(case), []
        if case["uninterrupted"]:
            steps = case["steps"] * (1 + len(case["then"]))
            whole = together({**case, "steps": steps, "then": []})
            assert whole.losses == found.losses, (case, whole, found)
            assert all(np.array_equal(whole.state[k], v) for k, v in found.state.items()), case
        if case["alone"]:
            expected = alone(case)
            differences = apart(found, expected)
            limits = [LIMIT] * len(differences)
            if case["exact"]:
                rounded = apart(alone({**case, "exact": False}), expected)
                limits = [max(LIMIT, 2 * own) for own in rounded]
            near = all(map(float.__lt__, differences, limits))
            assert near, (case, differences, limits, found, expected)
        if rank() == 0:
            print("equal:", given, *(f"{x:.1e}" for x in differences), flush=True)


if __name__ == "__main__":
    main()
