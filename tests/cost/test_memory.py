"""What a plan's operators hold, against what the search counts of it."""

import numpy as np
import pytest

from autoddl.cost.memory import held_bytes
from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.realize import place
from autoddl.planner.tables.tables import build_tables
from autoddl.search.local_search import descend
from tests.clusters import cluster
from tests.graphs import attention


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_sum_is_the_search_s_also_where_blocks_are_planned_differently(parts, recomputes):
    graph = attention(4, 8, 64, 128, 4).with_forks()
    model = CostModel(cluster("gcp_a100", 2, 2))
    again = Recomputation(graph, repeated_blocks(graph) if recomputes else ())
    assert bool(again.blocks) == recomputes
    tables = build_tables(graph, model, parts, again=again)
    assert tables is not None
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(8):
        choice = np.array([rng.integers(size) for size in tables.problem.sizes()])
        choice, _ = descend(tables.problem, choice, max_sweeps=2)
        counted = tables.problem.evaluate(choice)[1]
        ops, edges = place(tables, choice)
        held = held_bytes(graph, model, parts, ops, edges, again)
        assert sum(own.memory_bytes for own in held.values()) == pytest.approx(counted)
        insides = [sum(held[name].inside_bytes for name in block) for block in again.blocks]
        seen.add(len(set(insides)))
    assert not recomputes or max(seen) > 1
