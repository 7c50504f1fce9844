"""ZeRO's stages in the searched space: priced as they are written down, chosen as they should."""

import dataclasses

import numpy as np
import pytest

from autoddl import explain
from autoddl.cost.account import account, total
from autoddl.cost.model import CostModel
from autoddl.cost.sharded_storage import (
    Storage,
    StoragePrices,
    chosen_axes,
    storage_steps,
    stored_codes,
)
from autoddl.planner.asked import micro_graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import place
from autoddl.planner.tables.group_table import WHOLE_SPACE, Space
from autoddl.planner.tables.tables import build_tables
from autoddl.plans.figures import figures
from autoddl.plans.savings import savings, stored_whole
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.placement import B, NdSbp, P
from autoddl.search.budget import Budget
from autoddl.search.exact import auto
from autoddl.search.heuristics.exhaustive import exhaustive
from tests.clusters import cluster
from tests.graphs import attention, mlp

GRAPHS = (mlp(64, (32, 64, 32)), attention(1, 8, 16, 32, 4))


def tables_of(graph, where, parts, limit=1e12, space=WHOLE_SPACE):
    model = CostModel(where, memory_limit_bytes=limit)
    tables = build_tables(micro_graph(graph, parts), model, parts, space)
    assert tables is not None
    return tables


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("shape", [(2, 2), pytest.param((8, 1), marks=pytest.mark.full), (3, 2)])
def test_random_storages_cost_and_take_what_the_account_says(shape, parts):
    rng, seen = np.random.default_rng(0), set()
    for graph in GRAPHS:
        tables = tables_of(graph, cluster("gcp_a100", *shape), parts)
        for _ in range(8):
            choice = np.array([rng.integers(n) for n in tables.problem.sizes()])
            whole = choice.copy()
            for group, variable in enumerate(tables.variables):
                if tables.table_of(group).storage is not None:
                    whole[variable + 1] = 0
            cost, memory = tables.problem.evaluate(choice)
            if not np.isfinite(cost):
                continue
            micro = micro_graph(graph, parts)
            ops, edges = place(tables, choice)
            found, base = (
                total(account(micro, tables.model, parts, *placed).values())
                for placed in ((ops, edges), place(tables, whole))
            )
            assert found.iteration_s == pytest.approx(cost, rel=1e-6)
            saved = tables.problem.evaluate(whole)[1] - memory
            assert base.memory_bytes - found.memory_bytes == pytest.approx(saved, abs=1)
            seen |= {edge.zero_stage for edge in edges.values()}
    assert seen >= ({0, 1, 2, 3} if parts > 1 else {0, 2, 3})


def test_storages_get_dearer_and_smaller_from_the_whole_one_on():
    tables = tables_of(GRAPHS[0], cluster("gcp_a100", 2, 2), 4)
    stored = [t.storage for t in tables.groups if t.storage is not None]
    assert stored
    for table in stored:
        assert (table.which[:, 0] == 0).all()
        assert (np.diff(table.seconds, axis=1) >= 0).all()
        assert (np.diff(table.memory_bytes, axis=1) <= 0).all()


def test_a_limit_is_met_at_the_least_cost():
    """The search over strategies and storages against every choice."""
    graph, where = mlp(8, (8, 8)), cluster("piz_daint", 2, 1)
    free = tables_of(graph, where, 2).problem
    costs = set()
    sizes = [free.evaluate(np.zeros(free.num_variables, dtype=np.int64))[1]]
    for share in (0.95, 0.85, 0.75, 0.65, 0.6):
        problem = dataclasses.replace(free, memory_limit=share * sizes[0])
        rng, budget = np.random.default_rng(0), Budget()
        found, expected = auto(problem, rng, budget), exhaustive(problem, rng, budget)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.cost == pytest.approx(expected.cost, rel=1e-6)
            costs.add(round(found.cost, 12))
    assert len(costs) > 1


def test_without_a_limit_that_binds_nothing_is_split():
    for graph in GRAPHS:
        plan = find_plan(
            graph, cluster("gcp_a100", 2, 2), PlanOptions(micro_batches=2, baselines=False)
        )
        whole = find_plan(
            graph,
            cluster("gcp_a100", 2, 2),
            PlanOptions(micro_batches=2, zero=False, baselines=False),
        )
        assert not any(edge.zero_stage for edge in plan.stage.edges.values())
        assert figures(plan).cost.iteration_s == pytest.approx(
            figures(whole).cost.iteration_s, rel=1e-6
        )


def test_a_replicated_weight_is_split_along_a_dim_that_nothing_else_splits():
    mesh = cluster("piz_daint", 4, 2).mesh
    spec = TensorSpec((16, 24), "float32")
    needed, given = NdSbp.parse("(B, S0, B)"), NdSbp.parse("(P, S0, P)")

    def stored(axes):
        chosen = chosen_axes(axes, mesh)
        return NdSbp.from_codes(
            stored_codes(spec, needed.codes[None], given.codes[None], chosen, mesh)[0]
        )

    assert str(stored((0, 1, 2))) == "(S1, S0, S1)"
    assert str(stored((2,))) == "(B, S0, S1)"
    assert stored(()) == needed
    comm = CostModel(cluster("piz_daint", 4, 2)).comm
    forward, backward = storage_steps(spec, comm, needed, given, stored((2,)))
    assert [str(s) for s in forward] == ["all_gather[2] S1->B"]
    assert [str(s) for s in backward] == ["reduce_scatter[2] P->S1", "all_reduce[0] P->B"]


def test_each_row_is_split_over_axes_of_its_own():
    rng, mesh = np.random.default_rng(0), cluster("piz_daint", 4, 2).mesh
    spec = TensorSpec((16, 6), "float32")
    needed, given = rng.integers(-2, 2, (2, 60, mesh.num_axes), dtype=np.int8)
    every = np.array([chosen_axes(axes, mesh) for axes in ((), (1,), (0, 2), (0, 1, 2))])
    which = rng.integers(0, len(every), len(needed))
    found = stored_codes(spec, needed, given, every[which], mesh)
    for number, chosen in enumerate(every):
        alone = stored_codes(spec, needed, given, chosen, mesh)
        assert (found[which == number] == alone[which == number]).all()


def test_a_storage_costs_the_same_whatever_was_priced_before():
    rng, where = np.random.default_rng(0), cluster("gcp_a100", 4, 2)
    shared = CostModel(where).comm
    for size in (64, 128, 64):
        spec = TensorSpec((size, 64), "float32")
        needed = rng.choice(np.array([B.code, B.code, 0, 1], np.int8), (90, where.mesh.num_axes))
        given = np.where(needed == B.code, np.int8(P.code), needed)
        for axes in ((0, 1, 2), (1,)):
            seconds = []
            for comm in (shared, CostModel(where).comm):
                prices = StoragePrices(spec, comm, comm.mesh, 4, needed, given)
                stored = prices.stored(chosen_axes(axes, where.mesh))
                seconds += [prices.seconds(stage, stored, 4, np.zeros(90)) for stage in (1, 2, 3)]
            assert np.array_equal(seconds[:3], seconds[3:]) and np.any(seconds)


def test_a_dim_that_does_not_divide_stays_whole():
    mesh = cluster("piz_daint", 4, 1).mesh
    spec = TensorSpec((6, 7), "float32")
    needed, given = NdSbp.parse("(B, B)"), NdSbp.parse("(P, P)")
    codes = stored_codes(
        spec, needed.codes[None], given.codes[None], chosen_axes((0, 1), mesh), mesh
    )
    assert (codes[0] == needed.codes).all()


def test_savings_are_the_difference_to_whole_storage():
    graph, where = mlp(4096, (512,) * 5), cluster("gcp_a100", 1, 8)
    free = find_plan(graph, where, PlanOptions(micro_batches=2, baselines=False))
    plan = find_plan(
        graph,
        where,
        PlanOptions(
            micro_batches=2,
            memory_limit_bytes=0.45 * stage_figures(free.stage).memory_peak("executor").bytes,
            baselines=False,
        ),
    )
    stage, known = plan.stage, stage_figures(plan.stage)
    saving = savings(stage)
    assert saving.storage is not None and saving.accumulation is not None
    whole = total(
        account(
            plan.graph, known.model, 2,
            *stored_whole(plan.graph, known.model, stage.ops, stage.edges), known.again,
        ).values()
    )  # fmt: skip
    saved = whole.memory_bytes - known.cost.memory_bytes
    assert saving.storage.saved_bytes == pytest.approx(saved) and saved > 0
    assert saving.storage.extra_s >= 0
    text = explain(plan)
    assert "ZeRO stage" in text and "2 micro-batches are accumulated" in text
    by_layer = sum(s.saved_bytes for s in saving.by_op.values())
    assert by_layer == pytest.approx(saved)


def test_stages_are_in_the_file():
    graph, where = mlp(64, (32, 64, 32)), cluster("gcp_a100", 2, 2)
    plan = find_plan(graph, where, PlanOptions(micro_batches=2, baselines=False), space=Space())
    from autoddl.cost.sharded_storage import split_storage
    from autoddl.plans import Plan

    storage = {p.outputs[0]: Storage(3, (0, 1)) for p in plan.graph.params}
    ops, edges = split_storage(
        plan.graph,
        stage_figures(plan.stage).model.comm,
        storage,
        plan.stage.ops,
        plan.stage.edges,
    )
    split = plan.changed(ops=ops, edges=edges)
    again = Plan.loads(split.dumps())
    assert again.stage.edges == split.stage.edges and again.dumps() == split.dumps()
