"""The tables' memory of a choice and of its plan; tables at a price are those made at it."""

import dataclasses

import numpy as np
import pytest

from autoddl.cost.account import account, total
from autoddl.cost.model import CostModel, Ends, StepPrice
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.realize import place
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.groups import MicroBatches
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import TableBuilder, build_tables
from tests.clusters import cluster
from tests.graphs import Builder, attention

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


@pytest.mark.full
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


@pytest.mark.parametrize("again", [False, True])
def test_tables_at_a_price_are_the_serial_ones_at_that_price(again: bool):
    graph = attention(4, 64, 32, 64, 4)
    micro, serial = MicroBatches.of(graph), CostModel(cluster("laptop", 2, 2), overlap=True)
    recomputed = micro.again(2, repeated_blocks(graph) if again else ())
    assert bool(recomputed.blocks) == again
    names = [op.name for op in graph.ops if op.kind != "param"]
    ends = Ends(frozenset(names[-3:]), frozenset(names[:4]), frozenset(names[:2]))
    price = StepPrice(0.75, 0.5, 0.25, 0.2, 0.3, 2, ends)
    prices = PairPrices(serial.cluster.mesh, serial.comm.price, serial.comm.collectives)

    def prepared(model: CostModel) -> TableBuilder:
        found = TableBuilder(micro.grouping(2), model, 2, Space(zero=True), prices, recomputed)
        found.prepare()
        return found

    derived = prepared(serial).at_price(price)
    made = prepared(dataclasses.replace(serial, price=price))
    assert derived.model == made.model and derived.nodes == made.nodes
    one, other = derived.build().problem, made.build().problem
    assert one.nodes == other.nodes and one.edges == other.edges
    for name in ("node_cost", "node_memory", "edge_cost", "edge_memory"):
        pairs = zip(getattr(one, name), getattr(other, name), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), name
    assert len(made.owners) > len(prepared(serial).owners)  # ends count otherwise
