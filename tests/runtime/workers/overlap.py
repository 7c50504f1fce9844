"""Steps of a data-parallel plan on slow links, in turns as they are and with a wait put in.

Prints a JSON line: the median seconds of a step, and of one that waits for each bucket of gradients
as soon as it has left.
"""

import json
import statistics
import time

from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.execution.buckets import Bucket
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import install_guard, rank
from tests.framework import build_trainer, flow, new_backend, nn, trace_with_state
from tests.runtime.random_plans import cluster_of

LAYERS, WIDTH, ROWS, STEPS = 6, 512, 2048, 5


def main() -> None:
    install_guard()
    flow.manual_seed(0)  # ranks train on one batch
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    batch = flow.randn(ROWS, WIDTH), flow.randn(ROWS, WIDTH)
    traced = trace_with_state(model, *batch, loss=nn.MSELoss())
    where, options = cluster_of(2, 1), PlanOptions(micro_batches=1, baselines=False, overlap=False)

    def make() -> str:
        space = data_parallel(traced.graph)
        return find_plan(traced.graph, where, options, space=space).dumps()

    plan = Plan.loads(share_text(make, new_backend()))
    order = reversed(range(len(plan.stage.exchanges)))
    plan = plan.changed(buckets=tuple((number,) for number in order))
    assert len(plan.stage.buckets) == LAYERS
    trainer = build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=1e-3))
    bring = Bucket.bring

    def waiting(self, packed):
        brought = bring(self, packed)
        self.backend.wait()
        return brought

    seconds: dict[str, list[float]] = {"overlapped": [], "waiting": []}
    for number in range(1 + STEPS):
        for kind, way in (("overlapped", bring), ("waiting", waiting)):
            Bucket.bring = way
            started = time.perf_counter()
            float(trainer.step(*batch))
            new_backend().wait()
            if number:
                seconds[kind].append(time.perf_counter() - started)
    if rank() == 0:
        print(json.dumps({k: statistics.median(v) for k, v in seconds.items()}), flush=True)


main()
