"""The least bytes of all numbers of micro-batches from one look at the graph, and an executor's."""

import math

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.precision import in_precision
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.asked import micro_graph
from autoddl.planner.realize import Candidate
from autoddl.planner.tables.memory import LeastBytes, least_at_turn, least_bytes
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import build_tables
from autoddl.search.problem import SearchResult
from tests.clusters import cluster
from tests.graphs import attention, compared, gated, mixture, mlp, residual, tied

GRAPHS = {"wide": mlp(32, (512, 512, 512, 512, 96)), "attention": attention(8, 32, 64, 256, 8)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("recomputes", [False, True])
def test_one_look_tells_of_every_number_of_micro_batches(name, recomputes):
    """In one, of a weight, its gradient and two slots, gradients come as activations go."""
    model = CostModel(cluster("gcp_a100", 8, 4))
    whole = micro_graph(GRAPHS[name], 1)
    blocks = repeated_blocks(whole) if recomputes else ()
    assert bool(blocks) == recomputes
    least = LeastBytes.of(whole, model, Recomputation(whole, blocks))
    before = float("inf")
    for parts in (1, 2, 4, 8):
        micro = micro_graph(GRAPHS[name], parts)
        needed = least_bytes(micro, model, Recomputation(micro, blocks))
        given = 0.0 if parts > 1 else min(least.gradients, needed - 4 * least.gradients)
        assert least.within(parts) == pytest.approx(needed - given)
        assert needed < before
        before = needed


SMALL = (
    mlp(32, (64, 128, 64, 64)), attention(2, 8, 16, 32, 4), residual(6, 32, 32), gated(32, 32),
    compared(32, 32), tied(32, 32), mixture(8, 8, 16, 4, 8, 32),
)  # fmt: skip


def held_at_random(rng: np.random.Generator) -> tuple[float, list[float]]:
    """The bound of a model, and what some of its plans hold in autoddl's executor."""
    precision = str(rng.choice(["float32", "float16", "bfloat16"]))
    parts = int(rng.choice([1, 2, 4]))
    graph = micro_graph(in_precision(SMALL[rng.integers(len(SMALL))], precision), parts)
    model = CostModel(
        cluster("gcp_a100", *[(1, 2), (2, 2), (4, 1)][rng.integers(3)]),
        str(rng.choice(["sgd", "adam"])), memory_limit_bytes=math.inf, precision=precision,
        back_end=str(rng.choice(["oneflow", "torch"])), ema=bool(rng.integers(2)),
    )  # fmt: skip
    blocks = repeated_blocks(graph)
    again = Recomputation(graph, blocks[: rng.integers(len(blocks) + 1)])
    tables = build_tables(graph, model, parts, again=again)
    assert tables is not None
    paths = PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives).paths
    held = []
    for _ in range(6):
        choice = np.array([rng.integers(n) for n in tables.problem.sizes()])
        cost, memory = tables.problem.evaluate(choice)
        if math.isfinite(cost):
            result = SearchResult(choice, cost, memory, 1, "random")
            held.append(Candidate(tables, result, paths).needed_bytes)
    return least_at_turn(again, model, parts), held


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 100), marks=pytest.mark.full)])
def test_no_plan_holds_less_than_is_there_as_the_backward_pass_begins(seeds):
    shares = []
    for seed in seeds:
        bound, held = held_at_random(np.random.default_rng(seed))
        shares += [bound / own for own in held]
    assert len(shares) >= 3 * len(seeds)
    assert 0.5 < max(shares) <= 1
