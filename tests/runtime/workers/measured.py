"""Checks what a trainer measures in its first ten steps, on one mesh and in stages.

Arguments: the number of stages, and of parts of the model on each.
"""

import logging
import sys
import time
from collections import Counter

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.measure.training import LAST
from autoddl.runtime.oneflow.kernels import KERNELS
from tests.framework import build_trainer, flow, new_backend, trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.training import build

SLEEP_S = 0.02
ROWS = 8


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def slow(kernel):
    def run(ctx, inputs, attrs):
        time.sleep(SLEEP_S)
        return kernel(ctx, inputs, attrs)

    return run


def plan_of(graph, stages, chunks):
    if stages == 1:
        return random_plan(graph, cluster_of(2, 2), 1)
    schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
    options = PlanOptions(stages=stages, micro_batches=2, schedule=schedule, chunks=chunks)
    return find_plan(graph, cluster_of(2, 2), options)


def collectives_run_again(watch, between):
    """How many of the step are on this kind of link; each of them runs."""
    groups = watch._groups
    groups.log = []
    watch._collective_s(between)
    found, groups.log = groups.log, None
    own = [t for t in watch._log if (groups.mesh.topology(t.axes)[0] > 1) == between]
    assert Counter(own) <= Counter(found), (own, found)
    return len(own)


def main():
    stages, chunks = map(int, sys.argv[1:])
    logger, kept = logging.getLogger("autoddl"), Kept()
    logger.addHandler(kept)
    logger.propagate = False
    model, loss, batch = build("perceptron" if chunks == 1 else "transformer")
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    kind = next(op.kind for op in traced.graph.ops if op.kind in ("relu", "gelu"))
    right, KERNELS[kind] = KERNELS[kind], slow(KERNELS[kind])
    plan = plan_of(traced.graph, stages, chunks)
    trainer = build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=0.1))
    assert not trainer.measured and trainer.rows_per_second is None
    for step in range(LAST + 2):
        assert bool(trainer.measured) == (step >= LAST)
        trainer.step(*batch(step, ROWS))
    KERNELS[kind] = right
    logger.removeHandler(kept)
    found = trainer.measured
    alike = share_text(lambda: str(found), new_backend())
    assert alike == str(found)
    computing = [one for name, one in found.items() if name.startswith("computation")]
    assert len(computing) == stages
    slept = SLEEP_S * sum(op.kind == kind for op in plan.graph.ops) * plan.micro_batches
    talking = [one for name, one in found.items() if name.startswith("communication")]
    assert slept and sum(one.measured for one in (*computing, *talking)) >= slept, (slept, found)
    assert found["step"].measured >= slept / stages
    rate = trainer.rows_per_second
    assert rate is not None and ROWS / found["step"].measured > 0.2 * rate > 0
    if stages == 1:
        counts = [collectives_run_again(trainer._watch, between) for between in (False, True)]
        assert all(counts), counts
        assert len(talking) == 2
    else:
        assert found["transfers between stages between hosts"].measured > 0
    assert len(kept.texts) == (1 if trainer.is_main else 0), kept.texts
    if rank() == 0:
        assert "step: " in kept.texts[0] and "calibrate --model" in kept.texts[0]
        print("measured:", kept.texts[0])


main()
