import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.example import BOTH, SERIAL, STAGED


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_the_figures_of_a_plan_are_those_of_its_stages(plan: Plan):
    plan.verify()
    for stage in plan.stages:
        layers = [figures(plan).layer_cost(layer) for layer in stage.layers]
        cost = stage_figures(stage).cost
        assert sum(c.iteration_s for c in layers) == pytest.approx(cost.iteration_s + cost.hidden_s)
        assert sum(c.memory_bytes for c in layers) == pytest.approx(cost.memory_bytes)
        assert stage.mesh.size == stage.place.size
    assert plan.layers == tuple(layer for stage in plan.stages for layer in stage.layers)
    assert len(figures(plan).memory_bytes) == plan.num_stages
    assert max(figures(plan).memory_bytes) <= plan.memory_limit_bytes
    busiest = max(stage_figures(stage).cost.iteration_s for stage in plan.stages)
    assert figures(plan).cost.iteration_s == busiest <= figures(plan).iteration_s


def test_one_mesh_is_a_pipeline_that_never_waits():
    assert figures(SERIAL).iteration_s == stage_figures(SERIAL.stage).cost.iteration_s
    assert figures(SERIAL).timeline.bubble == 0.0 and not figures(SERIAL).travel.links
    (price,) = figures(SERIAL).prices
    passes = SERIAL.micro_batches * (price.forward_s + price.backward_s)
    assert figures(SERIAL).timeline.makespan_s == pytest.approx(passes)
    assert passes + price.once_s == pytest.approx(figures(SERIAL).iteration_s)
    assert price.memory_bytes(figures(SERIAL).schedule.stash[0]) == pytest.approx(
        figures(SERIAL).cost.memory_bytes
    )


def test_the_timeline_covers_the_whole_step():
    options = PlanOptions(stages=2, micro_batches=4, baselines=False)
    known = figures(find_plan(mlp(4096, (32, 64, 64, 64, 32)), cluster("laptop", 2, 2), options))
    once = [price.once_s + price.hidden_s for price in known.prices]
    first, *others = (price.hidden_s for price in known.prices)
    assert first > 0 and not any(others)  # the first stage waits for nobody's gradients
    assert min(once) > 0 and known.timeline.iteration_s == known.iteration_s
    assert sum(e.end_s - e.start_s for e in known.timeline.exchanges) == pytest.approx(sum(once))


def test_stages_are_planned_on_their_own_devices():
    assert [s.cluster.num_devices for s in STAGED.stages] == [2, 2]
    assert STAGED.micro_batches == 4 and STAGED.batch == 16
    (link,) = figures(STAGED).travel.links
    assert (link.source, link.target) == (0, 1)
    forward, backward = figures(STAGED).travel.reshards[link]
    assert backward is not None
    assert forward.source.place == STAGED.stages[0].place == backward.target.place
    assert forward.spec.shape[0] == 4
    assert figures(STAGED).iteration_s >= figures(STAGED).timeline.makespan_s > 0
    with pytest.raises(ValueError, match="2 stages"):
        assert STAGED.stage.ops
