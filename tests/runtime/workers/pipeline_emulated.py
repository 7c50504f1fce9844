"""Emulated compute in two stages: a step lasts as long as its passes, whatever they compute."""

import dataclasses
import time

from autoddl.cost.operators import at_rate
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.runtime.jobs.guard import rank
from tests.framework import build_trainer, trace_with_state
from tests.runtime.random_plans import cluster_of
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import build


def main():
    model, loss, batch = build("perceptron")
    traced = trace_with_state(model, *batch(0, 8), loss=loss)
    machine = cluster_of(2, 1)
    machine = dataclasses.replace(machine, device=at_rate(machine.device, 1e5))
    for schedule, overlap, signal in (
        ("1f1b", True, False), ("1f1b", False, False), ("zb-h1", True, True),
    ):  # fmt: skip
        plan = find_plan(
            traced.graph, machine, PlanOptions(stages=2, schedule=schedule, micro_batches=4)
        )
        trainer = build_trainer(
            traced, plan, OPTIMIZERS["sgd"], overlap=overlap, emulate=True, signal=signal
        )
        trainer.step(*batch(0, 8)).numpy()
        began = time.perf_counter()
        trainer.step(*batch(1, 8)).numpy()
        took = time.perf_counter() - began
        costs = figures(plan).pass_costs
        free = Costs(costs.forward, costs.backward, costs.weight, {}, {})
        least = simulate(figures(plan).schedule, free).makespan_s
        assert 0.9 * least < took < least + 2.0, (schedule, took, least)
        if rank() == 0:
            print(f"{schedule} emulated: {took:.3f} s, at least {least:.3f}", flush=True)


if __name__ == "__main__":
    main()
