"""Models whose results have another structure in evaluation than in training."""

import json

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.evaluation.mode import check_moved, evaluated_links
from tests.framework import flow, nn, trace_with_state
from tests.runtime.random_plans import cluster_of

CASES = [
    {"model": "heads", "debug": True},
    {"model": "heads", "stages": 2, "in_training": True, "micro_batches": 2},
]
MORE = [
    {"model": "others", "seed": 1, "in_training": True},
    {"model": "others"},
    {"model": "others", "stages": 2},
    *({"model": model, "seed": seed} for model in ("heads", "others") for seed in range(2, 6)),
    *({"model": model, "turns": True, "micro_batches": 2} for model in ("heads", "others")),
    *({"model": m, "stages": 2, "chunks": 2, "micro_batches": 4} for m in ("heads", "others")),
]


@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE, marks=pytest.mark.full)])
def test_each_mode_is_that_of_one_process(launch, cases):
    out = launch("modes", 4, json.dumps(cases))
    assert out.count("equal: ") == len(cases), out
    assert cases == MORE or "1 stages, 0 operators split" not in out, out


class Normed(nn.Module):
    """Its last layer in training is normalised in evaluation by what the first ones have moved."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.last(self.norm(self.first(x)))
        return y if self.training else (y, self.norm(y))


def test_statistics_that_another_stage_moves_are_not_read_in_evaluation():
    def loss(output, target):
        return ((output - target) ** 2).mean()

    x = flow.zeros(8, 8)
    graph = trace_with_state(Normed(), x, x, loss=loss).graph
    for stages in (1, 2):
        options = PlanOptions(stages=stages, hints={"last": "stage()"} if stages > 1 else ())
        plan = find_plan(graph, cluster_of(2, 1), options)
        if stages == 1:
            check_moved(plan, evaluated_links(plan))
            continue
        with pytest.raises(ValueError, match="stage 2 reads norm.running_.*, which in training"):
            check_moved(plan, evaluated_links(plan))
