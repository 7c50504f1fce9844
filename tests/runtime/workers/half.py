"""Loss scaling and the executor's float16 path on four CPU processes.

Arguments: the optimizers, with commas. OneFlow's CPU has no products in 16 bits, so kernels compute
in float32 here, between tensors of 16 bits: what is stored, summed up, redistributed and updated is
as it would be on a GPU.
"""

import sys

import numpy as np
import oneflow as flow

from autoddl.graph.precision import PRECISIONS, in_precision
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.kernel import Explicit
from autoddl.runtime.oneflow import backend
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.kernels.lean import LEAN
from autoddl.runtime.oneflow.kernels.registry import KERNELS
from autoddl.runtime.oneflow.trace.trace import trace_with_state
from autoddl.runtime.oneflow.trainer import build_trainer
from autoddl.runtime.update.loss_scale import LossScaler, all_finite
from tests.clusters import cluster
from tests.runtime.random_plans import cluster_of, random_plan
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import build

ROWS = 8
HALF = (flow.float16, flow.bfloat16)


def widened(kernel, name):
    """The kernel on float32 copies, with results in the planned dtypes."""

    def run(ctx, inputs, attrs):
        dtypes = [getattr(flow, t.dtype) for t in ctx.spec.outputs]
        given = [x.to(flow.float32) if x.dtype in HALF else x for x in inputs]
        result = kernel(ctx, given, attrs)
        outs = result.outputs if isinstance(result, Explicit) else result
        cast = [y.to(dtype) for y, dtype in zip(outs, dtypes, strict=True)]
        if not isinstance(result, Explicit):
            return cast

        def vjp(grads):
            wide = [None if g is None else g.to(flow.float32) for g in grads]
            back = result.vjp(wide)
            return [None if g is None else g.to(x.dtype) for g, x in zip(back, inputs, strict=True)]

        return Explicit(cast, vjp)

    return kernel if name == "cast" else run


def train(name, precision, optimizer, steps, parts=1, scaler=None, again=False, seed=0, stages=1):
    model, loss, batch = build(name)
    traced = trace_with_state(model, *batch(0, ROWS), loss=loss)
    if stages > 1:
        asked = PlanOptions(stages=stages, micro_batches=parts, precision=precision)
        make = lambda: find_plan(traced.graph, cluster("gcp_a100", 2, 2), asked).dumps()  # noqa: E731
        plan = Plan.loads(share_text(make, OneFlow()))
    else:
        graph = in_precision(traced.graph, precision)
        plan = random_plan(graph, cluster_of(2, 2), seed, micro_batches=parts)
        plan = plan.changed(precision=precision)
    if again:
        plan = plan.changed(recomputed=repeated_blocks(plan.graph))
    made = build_trainer(traced, plan, OPTIMIZERS[optimizer], debug=True, scaler=scaler)
    losses = [float(made.step(*batch(step, ROWS))) for step in range(steps)]
    return losses, {k: v.numpy() for k, v in made.state_dict().items()}, made.scaler


def scaling_changes_no_bit(optimizers):
    for optimizer in optimizers:
        plain, state, _ = train("stack", "float32", optimizer, 3, 2)
        losses, scaled, used = train(
            "stack", "float32", optimizer, 3, 2, LossScaler(2.0**12, growth_interval=2)
        )
        assert losses == plain, (losses, plain)
        assert all(np.array_equal(state[k], scaled[k]) for k in state)
        assert used and used.scale == 2.0**13 and used.skipped == 0


def overflow_skips_the_update(optimizers):
    _, start, _ = train("stack", "float32", "adam", 0)
    _, state, used = train("stack", "float32", "adam", 2, scaler=LossScaler(2.0**140))
    assert used and used.skipped == 2 and used.scale == 2.0**138
    assert all(np.array_equal(state[k], start[k]) for k in state)
    _, state, used = train("stack", "float32", "adam", 12, scaler=LossScaler(2.0**132))
    assert used and 3 < used.skipped < 12, used
    assert used.scale == 2.0 ** (132 - used.skipped) and used.good_steps == 12 - used.skipped
    assert not all(np.array_equal(state[k], start[k]) for k in state)
    assert all(np.isfinite(value).all() for value in state.values())


def one_rank_is_enough(optimizers):
    world = Groups(cluster_of(2, 2).mesh, rank(), OneFlow()).along((0, 1))
    for bad in (float("inf"), float("-inf"), float("nan")):
        value = bad if rank() == 2 else 1.0
        assert not all_finite([flow.ones(3), flow.tensor([1.0, value])], world)
    assert all_finite([flow.full((3,), 1e38)], world) and all_finite([], world)


def halves(optimizers):
    backend.precisions_of = lambda *asked: PRECISIONS
    known = [(kernels, dict(kernels)) for kernels in (KERNELS, LEAN)]
    cases = [(optimizer, "float16", 1) for optimizer in optimizers]
    cases += [(optimizers[0], "bfloat16", 1)]
    cases += [(optimizers[0], precision, 2) for precision in ("float16", "bfloat16")]
    for optimizer, precision, stages in cases:
        wide, _, _ = train("stack", "float32", optimizer, 4, 2, stages=stages)
        for kernels, own in known:
            kernels.update({name: widened(kernel, name) for name, kernel in own.items()})
        got, state, used = train("stack", precision, optimizer, 4, 2, stages=stages)
        if precision == "float16":
            assert used and used.scale == 2.0**16 and used.skipped == 0
            if stages == 1:
                again, state_again, _ = train("stack", precision, optimizer, 4, 2, again=True)
                assert got == again
                assert all(np.array_equal(state[k], state_again[k]) for k in state)
        else:
            assert used is None
        for kernels, own in known:
            kernels.update(own)
        assert all(value.dtype == np.float32 for value in state.values())
        worst = max(abs(a / b - 1) for a, b in zip(got, wide, strict=True))
        limit = 3e-3 if precision == "float16" else 3e-2
        assert 0 < worst < limit, (precision, stages, got, wide)


CHECKS = (one_rank_is_enough, scaling_changes_no_bit, overflow_skips_the_update, halves)
if __name__ == "__main__":
    optimizers = sys.argv[1].split(",")
    for check in CHECKS:
        check(optimizers)
        if rank() == 0:
            print("holds:", check.__name__, flush=True)
