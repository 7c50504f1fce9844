"""Plans of a mesh with micro-batches in flight: memory, ZeRO, recomputation, the bound."""

import dataclasses

import pytest

from autoddl.cost.memory import held_bytes
from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.cut import cut_graph
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.asked import micro_graph
from autoddl.planner.mesh import plan_mesh
from autoddl.planner.options import PlanOptions
from autoddl.planner.realize import place
from autoddl.planner.tables.groups import MicroBatches
from autoddl.planner.tables.tables import build_tables
from autoddl.plans.stage_figures import columns, stage_figures
from autoddl.search.elimination import eliminate
from tests.clusters import cluster
from tests.graphs import attention

MODEL = CostModel(cluster("gcp_a100", 2, 2))
DEEP = attention(8, 16, 8, 16, 4)
STAGE = cut_graph(DEEP).stage(0, len(cut_graph(DEEP).layers) // 2)


def planned(model, in_flight, **options):
    return plan_mesh(MicroBatches.of(STAGE, in_flight), (2,), model, PlanOptions(**options)).stage


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("held", [1, 2, 5])
def test_the_problem_counts_what_the_account_counts(recompute, held):
    """Memory of the tables with several micro-batches in flight, of cheap and of small choices."""
    micro = micro_graph(STAGE, 2)
    blocks = repeated_blocks(micro) if recompute else ()
    assert bool(blocks) == recompute
    again = Recomputation(micro, blocks, held)
    free = dataclasses.replace(MODEL, memory_limit_bytes=float("inf"))
    tables = build_tables(micro, free, 2, again=again)
    assert tables is not None
    for price in (0.0, 1e-12, 1e-10, 1e-6):
        choice = eliminate(tables.problem, price, frozenset()).expand_greedily()
        placed = place(tables, choice)
        memory = tables.problem.evaluate(choice)[1]
        held_by_operator = held_bytes(tables.grouping.graph, free, 2, *placed, again)
        assert memory == pytest.approx(
            sum(own.memory_bytes for own in held_by_operator.values()), rel=1e-6
        )
        if held == 1 or not recompute:
            continue
        # what a stage's price says, but for the whole batch of inputs and the blocks' mean
        parts = columns(tables.grouping.graph, free, *placed, again)
        inside = [sum(parts[n][5] for n in block) for block in blocks]
        work = sum(w * size for w, size in zip(again.weights, inside, strict=False))
        kept = sum(own[3] + held * own[4] for own in parts.values())
        inputs = sum(parts[op.name][4] for op in tables.grouping.graph.ops if op.kind == "input")
        assert memory == pytest.approx(kept + (2 - held) * inputs + work, rel=1e-6)


def test_less_memory_splits_parameters_and_runs_blocks_again():
    free = planned(MODEL, 4)
    assert stage_figures(free).gap == pytest.approx(0.0, abs=1e-4) and not free.recomputed
    needed = stage_figures(free).required_bytes()
    tight = dataclasses.replace(MODEL, memory_limit_bytes=0.8 * needed)
    smaller, again = (planned(tight, 4, checkpointing=which) for which in ("none", "all"))
    best = planned(tight, 4)
    for plan in (smaller, again, best):
        assert stage_figures(plan).required_bytes() <= 0.8 * needed
        assert stage_figures(free).cost.iteration_s < stage_figures(plan).cost.iteration_s
        bound = plan.search.lower_bound_s
        assert bound is not None and bound <= stage_figures(plan).cost.iteration_s
        seconds = stage_figures(plan).cost.iteration_s
        assert stage_figures(best).cost.iteration_s <= seconds * (1 + 1e-4)
    assert again.recomputed and stage_figures(again).price.work_bytes > 0
    assert stage_figures(again).price.stash_bytes < stage_figures(smaller).price.stash_bytes


def test_more_micro_batches_in_flight_need_more():
    """By what one of them keeps, which is what the account says it keeps."""
    plan = planned(MODEL, 1)
    needed = [
        stage_figures(dataclasses.replace(plan, in_flight=held)).required_bytes()
        for held in (2, 3, 4)  # with all four the first backward pass finds no sums of gradients
    ]
    kept = stage_figures(plan).price.stash_bytes
    assert needed[1] - needed[0] == pytest.approx(kept, rel=0.35)
    assert needed[2] - needed[1] == pytest.approx(kept, rel=0.35)


def test_what_fits_nothing_is_said():
    small = dataclasses.replace(MODEL, memory_limit_bytes=1e3)
    with pytest.raises(ValueError, match="2 micro-batches, 3 of them in flight"):
        planned(small, 3)
