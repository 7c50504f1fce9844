"""Profiles steps of a plan on 2x2; rank 0 writes the trace to a file and prints the table.

Arguments: the model, "buckets", "split" (which has ZeRO's stage 3, too) or "serial", "real" or
"emulated", the file. Of "split" each rank asks for what travels in the plan's order.
"""

import json
import sys

from autoddl.plans.schedule.buckets import best_buckets
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.measure.profile import Profile, planned_names
from tests.framework import build_trainer, flow, trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan, with_zero
from tests.runtime.training import build


def hold_order(found: Profile) -> None:
    """What is gathered ahead was asked for before gradients that need not hurry, as planned."""
    planned = [n for n in planned_names(found.planned) if n.cause in ("gather", "exchange")]
    asked = [name for name in found.names if name in planned]
    assert asked == planned, (asked, planned)
    first, last = (n for n, name in enumerate(planned) if name.cause == "exchange"), planned[-1]
    assert any(name.cause == "gather" for name in planned[next(first) :]) and last in asked


def main(name: str, kind: str, compute: str, path: str) -> None:
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    plan = random_plan(traced.graph, cluster_of(2, 2), 1)
    if kind == "split":
        plan = with_zero(plan, "3")
    if kind != "serial":
        plan = plan.changed(buckets=best_buckets(stage_figures(plan.stage).maker))
        assert plan.stage.buckets
    trainer = build_trainer(
        traced, plan, lambda p: flow.optim.SGD(p, lr=0.1), emulate=compute == "emulated"
    )
    before = trainer._parts[0].executor
    found = trainer.profile([batch(step, 8) for step in range(3)])
    assert trainer._parts[0].executor is before and trainer.steps == 3
    trainer.step(*batch(4, 8))
    steps = 1 + len(found.step_s)
    if kind == "split":
        hold_order(found)
    if rank() == 0:
        found.save(path)
        tasks = [[t.cause, t.operator, t.seconds] for t in found.planned.tasks]
        print(json.dumps({"steps": steps, "tasks": len(tasks), "end_s": max(found.step_s)}))
        print(found)


main(*sys.argv[1:])
