"""Trains small models by plans of all kinds and compares them with the same models on one device.

Arguments: one JSON list of cases (see `DEFAULTS`). Prints a line for each that is equal.
"""

import dataclasses
import functools
import json
import sys

import numpy as np

import autoddl
from autoddl.cost.exchange import filling
from autoddl.graph.batch_norm import with_batch_norm
from autoddl.graph.graph import SOURCE_KINDS
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from tests.framework import build_trainer, new_backend, trace_with_state
from tests.runtime import training
from tests.runtime.random_plans import cluster_of, random_plan, with_zero
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import IDLE, build, differences, together

DEFAULTS = {
    "nodes": 2,
    "gpus": 2,
    "rows": 8,
    "steps": 3,
    "micro_batches": 1,
    "optimizer": "sgd",
    "seed": 0,  # of a plan that is drawn; None: the plan that is found
    "stages": None,  # a number: the plan that is found
    "favour_splits": True,
    "batch_norm": "batch",
    "recomputed": False,  # compared to the bit with what keeps everything, too
    "data_parallel": False,  # the plan that is
    "zero": None,  # parameters are stored by ZeRO's stage of that number
    # of gradients: "single", "together", or "late" for single ones that wait; compared with what
    # has none, too
    "buckets": None,
    "turns": None,  # how many micro-batches are in flight; compared to the bit with one by one, too
    "alone": True,  # compared with one device, which has other random numbers
    "own_rows": False,  # each rank gives its rows only
    "evaluated": None,  # batches of so many rows; None: as in training
    "debug": False,  # each tensor is read, which takes four times as long
}
LOSS_LIMITS = {"sgd": 1e-5, "slow sgd": 2e-5, "whole gradient": 1e-5, "adam": 1e-4}
STATE_LIMITS = {"sgd": 1e-4, "slow sgd": 2e-5, "whole gradient": 1e-5, "adam": 1e-4}
RESULT_LIMIT = 1e-4
alone = functools.cache(training.alone)


def plan_of(case, graph) -> Plan:
    """Made on rank 0 and shared."""
    where, parts, seed = (
        cluster_of(case["nodes"], case["gpus"]),
        case["micro_batches"],
        case["seed"],
    )

    def make() -> str:
        if case["data_parallel"]:
            options = PlanOptions(micro_batches=parts, baselines=False, overlap=False)
            plan = find_plan(graph, where, options, space=data_parallel(graph))
        elif case["stages"] is None and seed is not None:
            favour = case["favour_splits"]
            plan = random_plan(graph, where, seed, micro_batches=parts, favour_splits=favour)
        else:
            given = {"stages": case["stages"], "batch_norm": case["batch_norm"]}
            plan = autoddl.plan(graph, where, micro_batches=parts, baselines=False, **given)
        return plan.dumps()

    return Plan.loads(share_text(make, new_backend()))


def buckets(plan, kind) -> tuple[tuple[int, ...], ...]:
    """The gradients in the order of the backward pass, or all that can travel together."""
    every, found = plan.stage.exchanges, {}
    for number in reversed(range(len(every))):
        company = every[number].company if kind == "together" else number
        found.setdefault(company, []).append(number)
    made = tuple(map(tuple, found.values()))
    assert made and (kind == "together") == (max(map(len, made)) > 1), made
    return made


def waits(plan, made) -> tuple[int, ...]:
    """For how many operators each bucket waits, at random."""
    last = sum(op.kind not in SOURCE_KINDS for op in plan.stage.graph.ops) - 1
    rng, full = np.random.default_rng(last), filling(plan.graph, plan.stage.exchanges, made)
    found = tuple(int(rng.integers(last - place + 1)) for place in full)
    assert any(found), found
    return found


def turns(plan, together) -> tuple[tuple[int, int], ...]:
    """So many micro-batches in flight, which take turns at random, none ahead of one before it."""
    last = 4 * sum(op.kind not in SOURCE_KINDS for op in plan.stage.graph.ops)
    rng, at, found = np.random.default_rng(last), [0] * together, []
    while at[-1] < last:
        strand = int(rng.integers(together))
        room = (at[strand - 1] if strand else last) - at[strand]
        if room:
            at[strand] += int(rng.integers(1, min(room, 7) + 1))
            found.append((strand, at[strand]))
    return tuple(found)


@functools.cache
def recorded(name, rows):
    model, loss, batch = build(name)
    return trace_with_state(model, *batch(0, rows), loss=loss), batch


def run(case) -> None:
    name, optimizer, rows, steps = (case[k] for k in ("model", "optimizer", "rows", "steps"))
    traced, batch = recorded(name, rows)
    if rank() != 0:
        for op in traced.graph.params:
            traced.params[op.attrs["name"]].data.zero_()  # rank 0's values count
    chosen = with_batch_norm(traced.graph, case["batch_norm"])
    traced = dataclasses.replace(traced, graph=chosen)
    evaluated = (rows,) if case["evaluated"] is None else tuple(case["evaluated"])

    def train(plan):
        trainer = build_trainer(traced, plan, OPTIMIZERS[optimizer], debug=case["debug"])
        return together(trainer, batch, rows, steps, evaluated, case["own_rows"])

    plan = plan_of(case, traced.graph)
    if case["zero"]:
        plan = with_zero(plan, case["zero"])
    found, blocks = train(plan), plan.recomputed
    if case["recomputed"]:
        blocks = repeated_blocks(plan.graph)
        assert len(blocks) >= 3, blocks
        again = train(plan.changed(recomputed=blocks))
        assert again.losses == found.losses, (case, again.losses, found.losses)
        assert all(np.array_equal(again.state[k], v) for k, v in found.state.items()), case
    if case["turns"]:
        several = plan.changed(turns=turns(plan, case["turns"]), in_flight=case["turns"])
        if case["buckets"]:
            several = several.changed(buckets=buckets(plan, case["buckets"]))
            plan = several.changed(turns=(), in_flight=1)
            found = train(plan)
        again = train(several)
        assert again.losses == found.losses, (case, again.losses, found.losses)
        assert all(np.array_equal(again.state[k], v) for k, v in found.state.items()), case
    elif case["buckets"]:
        made = buckets(plan, case["buckets"])
        late = waits(plan, made) if case["buckets"] == "late" else ()
        bucketed = train(plan.changed(buckets=made, waits=late, recomputed=blocks))
        if case["buckets"] != "together":  # the same sums
            assert bucketed.losses == found.losses, (case, bucketed.losses, found.losses)
            assert all(np.array_equal(bucketed.state[k], v) for k, v in found.state.items()), case
        apart = differences(bucketed, found, ())
        assert max(apart[:2]) < 1e-6, (case, apart)
    apart = ()
    if case["alone"]:
        parts = case["micro_batches"] if case["batch_norm"] == "micro_batch" else 1
        expected = alone(name, optimizer, rows, steps, parts, evaluated)
        apart = differences(found, expected, IDLE if optimizer == "adam" else ())
        limits = LOSS_LIMITS[optimizer], STATE_LIMITS[optimizer], RESULT_LIMIT
        # with Adam biases without a gradient wander
        compared = 2 if optimizer == "adam" else 3
        assert all(a < b for a, b in list(zip(apart, limits, strict=True))[:compared]), (
            case,
            apart,
        )
    if rank() == 0:
        print("equal:", case, " ".join(f"{x:.1e}" for x in apart), flush=True)


if __name__ == "__main__":
    for given in json.loads(sys.argv[1]):
        assert given.keys() <= {"model", *DEFAULTS}, given
        run({**DEFAULTS, **given})
