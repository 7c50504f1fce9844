"""The tables' memory of a choice and that of the plan written down from it."""

import numpy as np

from autoddl.cost.account import account, total
from autoddl.cost.model import CostModel
from autoddl.planner.realize import place
from autoddl.planner.tables.tables import build_tables
from tests.clusters import cluster
from tests.graphs import Builder

BATCH, WIDTH = 16, 32


def masked():
    """Two dense layers, a mask without a batch added after each."""
    b = Builder(BATCH)
    x = b.input(0, (BATCH, WIDTH, WIDTH))
    mask = b.op("mask", "buffer", (), (WIDTH, WIDTH), name="mask")
    for n in range(2):
        x = b.linear(f"fc{n}", x, WIDTH)
        x = b.op(f"add{n}", "broadcast_add", (x, mask), b.shape(x))
        x = b.unary("relu", x, f"relu{n}")
    return b.graph(x, "masked")


def test_a_plan_keeps_no_more_than_its_choice_although_readers_cut_a_buffer_differently():
    rng, cut = np.random.default_rng(0), 0
    graph = masked()
    model = CostModel(cluster("gcp_a100", 2, 2), memory_limit_bytes=1e12)
    tables = build_tables(graph, model)
    assert tables is not None
    for _ in range(200):
        choice = np.array([rng.integers(n) for n in tables.problem.sizes()])
        cost, memory = tables.problem.evaluate(choice)
        if not np.isfinite(cost):
            continue
        ops, edges = place(tables, choice)
        found = total(account(graph, model, 1, ops, edges).values()).memory_bytes
        assert found <= memory * (1 + 1e-9)
        cut += any(name.startswith("add") and index == 1 for name, index in edges)
    assert cut > 10
