"""The least bytes of all numbers of micro-batches from one look at the graph."""

import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.asked import micro_graph
from autoddl.planner.tables.memory import LeastBytes, least_bytes
from tests.clusters import cluster
from tests.graphs import attention, mlp

GRAPHS = {"wide": mlp(32, (512, 512, 512, 512, 96)), "attention": attention(8, 32, 64, 256, 8)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("recomputes", [False, True])
def test_one_look_tells_of_every_number_of_micro_batches(name, recomputes):
    model = CostModel(cluster("gcp_a100", 8, 4))
    whole = micro_graph(GRAPHS[name], 1)
    blocks = repeated_blocks(whole) if recomputes else ()
    assert bool(blocks) == recomputes
    least = LeastBytes.of(whole, model, Recomputation(whole, blocks))
    before = float("inf")
    for parts in (1, 2, 4, 8):
        micro = micro_graph(GRAPHS[name], parts)
        needed = least_bytes(micro, model, Recomputation(micro, blocks))
        assert least.within(parts) == pytest.approx(needed)
        assert needed < before
        before = needed
