"""Plans of single stages: memory of micro-batches in flight, ZeRO, recomputation, the bound."""

import dataclasses

import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.cut import cut_graph
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.placements import place
from autoddl.planner.planner import micro_graph
from autoddl.planner.stages.stage_memory import with_in_flight
from autoddl.planner.stages.stage_plan import plan_stage
from autoddl.planner.tables.tables import build_tables
from autoddl.plans.stage_account import columns
from autoddl.plans.stage_figures import stage_figures
from autoddl.search.elimination import eliminate
from tests.clusters import cluster
from tests.graphs import attention

MODEL = CostModel(cluster("gcp_a100", 2, 2))
DEEP = attention(8, 16, 8, 16, 4)
STAGE = cut_graph(DEEP).stage(0, len(cut_graph(DEEP).layers) // 2)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_problem_counts_what_the_account_counts(recompute):
    """Memory of the tables with several micro-batches in flight, of cheap and of small choices."""
    micro = micro_graph(STAGE, 2)
    blocks = repeated_blocks(micro) if recompute else ()
    assert bool(blocks) == recompute
    again = Recomputation(micro, blocks)
    free = dataclasses.replace(MODEL, memory_limit_bytes=float("inf"))
    tables = build_tables(micro, free, 2, again=again)
    assert tables is not None
    for held in (1, 2, 5):
        problem = with_in_flight(tables, held)
        for price in (0.0, 1e-12, 1e-10, 1e-6):
            choice = eliminate(problem, price, frozenset()).expand_greedily()
            placed = place(tables, choice)
            parts = columns(tables.grouping.graph, free, *placed, again)
            inside = [sum(parts[n][5] for n in block) for block in blocks]
            weights = again.weights[: len(blocks)]
            work = sum(w * size for w, size in zip(weights, inside, strict=True))
            kept = sum(own[3] + held * own[4] for own in parts.values())
            assert problem.evaluate(choice)[1] == pytest.approx(kept + work, rel=1e-6)


def test_less_memory_splits_parameters_and_runs_blocks_again():
    free = plan_stage(STAGE, MODEL, 2, 4, recompute=False)
    needed = stage_figures(free).price.memory_bytes(4)
    assert stage_figures(free).cost.iteration_s == pytest.approx(free.search.lower_bound_s)
    tight = dataclasses.replace(MODEL, memory_limit_bytes=0.8 * needed)
    smaller = plan_stage(STAGE, tight, 2, 4, recompute=False)
    again = plan_stage(STAGE, tight, 2, 4, recompute=True)
    for plan in (smaller, again):
        assert stage_figures(plan).price.memory_bytes(4) <= 0.8 * needed
        assert stage_figures(free).cost.iteration_s < stage_figures(plan).cost.iteration_s
        bound = plan.search.lower_bound_s
        assert bound is not None and bound <= stage_figures(plan).cost.iteration_s
    assert again.recomputed and stage_figures(again).price.work_bytes > 0
    assert stage_figures(again).price.stash_bytes < stage_figures(smaller).price.stash_bytes


def test_what_fits_nothing_is_said():
    small = dataclasses.replace(MODEL, memory_limit_bytes=1e3)
    with pytest.raises(ValueError, match="with 3 micro-batches in flight"):
        plan_stage(STAGE, small, 2, 3, recompute=True)
