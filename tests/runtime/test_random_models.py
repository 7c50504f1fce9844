"""Random models train in parallel as alone, by the plan that is found and by a random one."""

import warnings

import numpy as np
import oneflow as flow
import oneflow.nn.functional as F
import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.trace.trace import trace
from tests.clusters import cluster
from tests.runtime.random_models import RandomModel
from tests.runtime.small_models import floats


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.timeout(1500)
def test_they_train_like_one_process(launch, count):
    out = launch("random_models", 4, "0", str(count), timeout=1400)
    assert out.count(" equal: ") == count


@pytest.mark.parametrize(
    "seeds", [range(100, 106), pytest.param(range(200), marks=pytest.mark.full)]
)
@pytest.mark.timeout(1500)
def test_they_are_planned_within_any_limit(seeds):
    for seed in seeds:
        flow.manual_seed(7)
        model, rng = RandomModel(seed), np.random.default_rng(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is not split is told; detach is not
            x, target = floats(rng, 8, *model.shape), floats(rng, 8, 4)
            graph = trace(model, x, target, loss=F.mse_loss)
        where = cluster("gcp_a100", 2, 2)
        plan = find_plan(graph, where, PlanOptions(baselines=False))
        plan.verify()
        assert figures(plan).cost.iteration_s == pytest.approx(
            plan.stage.search.lower_bound_s, rel=3e-6
        ), seed
        for share in (0.8, 0.6):
            limit = share * stage_figures(plan.stage).memory_peak("executor").bytes
            try:
                smaller = find_plan(
                    graph, where, PlanOptions(memory_limit_bytes=limit, baselines=False)
                )
            except ValueError:
                break
            assert stage_figures(smaller.stage).memory_peak("executor").bytes <= limit, seed
