"""Trains a small model in pipeline stages and compares it with the same model on one device.

Arguments: one JSON object, a list of cases (see `run`).
"""

import dataclasses
import json
import os
import signal
import sys

import numpy as np

from autoddl.cost.operators import at_rate
from autoddl.cost.sharded_storage import Storage, split_storage
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.schedule.buckets import best_buckets
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.update.loss_scale import LossScaler
from tests.framework import NAME, build_trainer, flow, new_backend, trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import Trained, alone, arrays, build, differences

DEATHS = {"raises": None, "killed": lambda *_: os.kill(os.getpid(), signal.SIGKILL)}


def shuffled(plan: Plan, graph, seed):
    """The same stages with random placements inside, so that layouts differ between them."""
    cut = dataclasses.replace(plan.cut, graph=graph)
    stages = []
    for n, old in enumerate(plan.stages):
        made = random_plan(
            cut.stage(old.first, old.last), old.cluster, seed + n, micro_batches=plan.micro_batches
        ).stage.at(old.first, old.last, old.place)
        stages.append(dataclasses.replace(made, in_flight=old.in_flight))
    return dataclasses.replace(plan, stages=tuple(stages))


def recomputed(plan: Plan):
    """The same stages, all their repeated blocks run again."""
    stages = []
    for stage in plan.stages:
        blocks = repeated_blocks(stage.graph)
        assert blocks
        stages.append(dataclasses.replace(stage, recomputed=blocks))
    return dataclasses.replace(plan, stages=tuple(stages))


def stored_split(plan: Plan, zero_stage):
    """The same stages, their parameters stored by a stage of ZeRO over all axes that replicate."""
    stages, count = [], 0
    for own in plan.stages:
        axes = tuple(range(own.cluster.mesh.num_axes))
        storage = {op.outputs[0]: Storage(zero_stage, axes) for op in own.graph.params}
        ops, edges = split_storage(
            own.graph, stage_figures(own).model.comm, storage, own.ops, own.edges
        )
        count += sum(edge.zero_stage > 0 for edge in edges.values())
        own = dataclasses.replace(own, ops=ops, edges=edges, buckets=(), waits=())
        stages.append(own)
    assert count
    return dataclasses.replace(plan, stages=tuple(stages))


def in_best_buckets(plan: Plan):
    """The same stages, their gradients in the buckets that the planner would choose."""
    found = [best_buckets(stage_figures(own).maker) for own in plan.stages]
    pairs = zip(plan.stages, found, strict=True)
    stages = tuple(dataclasses.replace(own, buckets=buckets) for own, buckets in pairs)
    return dataclasses.replace(plan, stages=stages)


def watched_step(trainer, batch):
    """A step's loss; its passes communicate in their stages where the plan says so."""
    met, walk = set(), trainer._walk
    compute = walk.compute
    executors = [part.executor for part in trainer._parts.values()]

    def watched(action, number, *shares):
        trainer._job.groups.log = []
        compute(action, number, *shares)
        if trainer._job.groups.log:
            met.add((action.kind, number))
            assert walk._meets(action), action

    walk.compute = watched
    watches = [executor._debug for executor in executors]
    for executor in executors:
        executor._debug = False  # its checks communicate too
    loss = float(trainer.step(*batch))
    for executor, watches_again in zip(executors, watches, strict=True):
        executor._debug = watches_again
    walk.compute, trainer._job.groups.log = compute, None
    for number, part in trainer._parts.items():
        assert (("F", number) in met) == ("F" in part.meets), (met, part.meets)
    return loss


def run(case, expected):
    name, rows = case["model"], case["rows"]
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, rows), loss=loss)

    def make():
        cluster = cluster_of(case["nodes"], case["gpus"])
        if case["zero"]:  # where computing takes long every operator is divided
            cluster = dataclasses.replace(cluster, device=at_rate(cluster.device, 1e5))
        plan = find_plan(
            traced.graph,
            cluster,
            PlanOptions(
                stages=case["stages"],
                schedule=case["schedule"],
                micro_batches=case["micro_batches"],
                chunks=case["chunks"],
                delay=case["delay"],
            ),
        )
        if case["seed"] is not None:
            plan = shuffled(plan, traced.graph, case["seed"])
        if case["zero"]:
            plan = stored_split(plan, case["zero"])
        if case["recomputed"]:
            plan = recomputed(plan)
        if figures(plan).schedule.joint:
            plan = in_best_buckets(plan)
        return json.dumps(plan.to_json())

    plan = Plan.from_json(json.loads(share_text(make, new_backend())))
    options = {name: case[name] for name in ("overlap", "debug")}
    trainer = build_trainer(traced, plan, OPTIMIZERS["sgd"], **options)
    if case["dies"] and rank() == 1:
        (part,) = trainer._parts.values()
        part.executor.backward_pass = DEATHS[case["dies"]]  # in the middle of the schedule
    kernels = new_backend().kernels
    heavy = sum(
        node.kernel in kernels.by_input.values()
        for part in trainer._parts.values()
        for node in part.executor._program.nodes
    )
    last = rank() in trainer._job.ranks[-1]
    if kernels.by_input["matmul"] is not kernels.operators["matmul"]:
        assert bool(heavy) == (not figures(plan).schedule.joint) or not (heavy or last)
    losses = [watched_step(trainer, batch(0, rows))]
    losses += [float(trainer.step(*batch(step, rows))) for step in range(1, case["steps"])]
    evaluated = [trainer.eval_step(*batch(9, n)[:-1]).numpy() for n in (rows, 2 * rows)]
    worst, apart, _ = differences(Trained(losses, arrays(trainer), []), expected)
    model.load_state_dict(trainer.state_dict())
    model.eval()
    with flow.no_grad():
        whole = [model(*batch(9, n)[:-1]).numpy() for n in (rows, 2 * rows)]
    for ours, theirs in zip(evaluated, whole, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5), np.abs(ours - theirs).max()
    model.train()
    trainer.load_state_dict(wanted := trainer.state_dict())
    again = trainer.state_dict()
    assert all(np.array_equal(again[k].numpy(), v.numpy()) for k, v in wanted.items())
    skips = sum(link.target > link.source + 1 for link in figures(plan).travel.links)
    if rank() == 0:
        print(
            f"{name} {case['schedule']} stages={plan.num_stages}x{plan.chunks} "
            f"m={case['micro_batches']} "
            f"skips={skips} tied={len(figures(plan).travel.shared_params)} "
            f"loss {worst:.1e} state {apart:.1e}",
            flush=True,
        )
    assert worst < 2e-5 and apart < 2e-5, (losses, expected.losses, apart)


def bucketed(case):
    """Gradients leave in buckets: the bits of those that travel at the end.

    With a scaled loss, clipping, a hook that changes gradients in place, a frozen parameter, and
    whatever weights are tied between the stages.
    """
    model, loss, batch = build(case["model"])
    frozen = next(p for name, p in model.named_parameters() if name.endswith("bias"))
    frozen.requires_grad_(False)
    traced = trace_with_state(model, *batch(0, case["rows"]), loss=loss)
    cluster = cluster_of(case["nodes"], case["gpus"])
    cluster = dataclasses.replace(cluster, device=at_rate(cluster.device, 1e5))
    options = PlanOptions(
        stages=case["stages"], schedule=case["schedule"], micro_batches=case["micro_batches"]
    )

    def train(plan):
        trainer = build_trainer(
            traced, plan, OPTIMIZERS["sgd"], scaler=LossScaler(2.0**10), clip_grad_norm=0.5
        )
        trainer.after_backward(lambda named: [part_of(p.grad).mul_(0.5) for _, p in named])
        losses = [float(trainer.step(*batch(n, case["rows"]))) for n in range(case["steps"])]
        return losses, trainer.grad_norm, arrays(trainer)

    text = share_text(lambda: find_plan(traced.graph, cluster, options).dumps(), new_backend())
    plan = Plan.loads(text)
    stages = []
    for own in plan.stages:
        assert len(own.exchanges) > 1
        order = reversed(range(len(own.exchanges)))
        stages.append(dataclasses.replace(own, buckets=tuple((n,) for n in order), waits=()))
    serial = [dataclasses.replace(own, buckets=(), waits=()) for own in plan.stages]
    left, home = (train(dataclasses.replace(plan, stages=tuple(s))) for s in (stages, serial))
    assert left[:2] == home[:2], (left[:2], home[:2])
    assert all(np.array_equal(value, home[2][key]) for key, value in left[2].items())
    if rank() == 0:
        tied = len(figures(plan).travel.shared_params)
        print(f"{case['model']} {case['schedule']} stages={plan.num_stages} tied={tied}")


def part_of(x):
    """This rank's, of what an optimizer has: OneFlow's are global tensors."""
    return x.to_local() if NAME == "oneflow" else x


def main():
    known = {}
    for case in json.loads(sys.argv[1]):
        case = {
            "rows": 8,
            "steps": 3,
            "overlap": True,
            "seed": None,
            "dies": "",
            "chunks": 1,
            "delay": None,
            "recomputed": False,
            "zero": 0,
            "buckets": False,
            "debug": False,
            **case,
        }
        if case["buckets"]:
            bucketed(case)
            continue
        key = case["model"], case["rows"], case["steps"]
        if key not in known:
            known[key] = alone(case["model"], "sgd", case["rows"], case["steps"])
        run(case, known[key])


if __name__ == "__main__":
    main()
