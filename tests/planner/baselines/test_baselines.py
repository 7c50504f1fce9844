"""Every known scheme beside every plan: what it costs, and that ours is no worse."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl import explain
from autoddl.cost.model import CostModel
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.asked import micro_graph
from autoddl.planner.baselines import (
    FAMILIES,
    BaselinePricer,
    data_parallel,
    megatron,
    tried_again,
    variants,
)
from autoddl.planner.baselines.pricing import Schemes
from autoddl.planner.baselines.tables import least_memories
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.planner.tables.groups import MicroBatches
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import S
from autoddl.search.budget import Budget
from autoddl.search.exact import auto
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual, tied

WIDE = mlp(512, (1024, 4096, 4096, 1024))
GRAPHS = (
    mlp(64, (32, 64, 16)),
    mlp(8, (256, 512, 512, 128)),
    residual(2, 32, 64),
    tied(16, 64),
    attention(1, 8, 16, 32, 4),
    attention(2, 4, 8, 64, 8),
)
MACHINES = ("laptop", "piz_daint", "gcp_a100")


def test_topologies_fill_the_nodes_with_tensor_axes_first():
    found = {f.name: [v.topology(Mesh(4, 2)) for v in variants(f, Mesh(4, 2))] for f in FAMILIES}
    assert found["data parallel"] == ["data 8"]
    assert found["Megatron"] == [
        "tensor 8",
        "data 2 over 2 hosts × tensor 4 over 2 hosts",
        "data 4 over 4 hosts × tensor 2",
    ]
    assert found["SUMMA"] == [
        "rows 2 over 2 hosts × columns 4 over 2 hosts",
        "rows 4 over 4 hosts × columns 2",
    ]


@pytest.mark.parametrize("graph", GRAPHS[2:], ids=lambda g: g.name)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_baseline_costs_as_a_plan_what_it_was_priced(graph, machine):
    for record, plan in baseline_plans(graph, cluster(machine, 2, 4)).values():
        if record.name in ("data parallel", "ZeRO") and graph.batch % 8:
            assert not record.fits and plan is None
            continue
        assert plan is not None, record
        plan.verify()
        assert figures(plan).cost.iteration_s == pytest.approx(record.iteration_s, rel=1e-6), record
        assert figures(plan).cost.exposed_s == pytest.approx(record.communication_s, rel=1e-6)
        # The search counts a copy for some inputs that need none.
        assert record.memory_bytes is not None
        assert (
            0.5 * record.memory_bytes
            <= figures(plan).cost.memory_bytes
            <= record.memory_bytes * 1.000001
        )


def test_data_parallelism_is_what_the_restricted_search_finds():
    where = cluster("piz_daint", 4, 2)
    searched = find_plan(WIDE, where, space=data_parallel(WIDE))
    record, plan = baseline_plans(WIDE, where)["data parallel"]
    assert record.iteration_s == pytest.approx(figures(searched).cost.iteration_s, rel=1e-6)
    assert plan is not None and {layer.topology for layer in plan.layers} == {
        "(S0:(4,2), B:(1,1), S1:(1,1))"
    }


def test_megatron_is_no_worse_than_the_restricted_search_on_any_topology():
    where = cluster("piz_daint", 16, 1)
    serial = PlanOptions(overlap=False)
    record, _ = baseline_plans(WIDE, where, serial)["Megatron"]
    searched = [
        figures(find_plan(WIDE, where, serial, space=megatron(WIDE, range(n)))).cost.iteration_s
        for n in range(4)
    ]
    assert record.iteration_s is not None
    # The search may label like axes differently within a scheme, the baseline does not.
    assert min(searched) <= record.iteration_s * (1 + 1e-6)
    assert record.iteration_s <= min(searched) * 1.05


def test_split_storage_saves_memory_at_the_same_price():
    found = baseline_plans(WIDE, cluster("piz_daint", 8, 1), PlanOptions(overlap=False))
    whole, split = found["data parallel"][1], found["ZeRO"][1]
    assert whole is not None and split is not None
    assert figures(split).cost.iteration_s == pytest.approx(
        figures(whole).cost.iteration_s, rel=1e-6
    )
    weights = sum(4 * WIDE.tensors[p.outputs[0]].spec.numel for p in WIDE.params)
    # Adam: weight, gradient and two moments in eighths, and the gathered copy.
    saved = figures(whole).cost.memory_bytes - figures(split).cost.memory_bytes
    assert saved == pytest.approx(weights * (4 - 4 / 8 - 1), rel=1e-3)


def test_summa_moves_what_its_broadcasts_move():
    """On an r x c grid: X along the rows, W along the columns, and both ways back."""
    batch, wide = 1024, 2048
    graph = mlp(batch, (wide,) * 5)
    plan = baseline_plans(graph, cluster("piz_daint", 16, 1), PlanOptions(micro_batches=1))[
        "SUMMA"
    ][1]
    assert plan is not None
    out, weight = plan.stage.ops["fc2/matmul"].outs[0], plan.stage.ops["fc2.weight"].outs[0]
    rows, columns = (
        plan.stage.mesh.extent(out.axes_of(S(0))),
        plan.stage.mesh.extent(out.axes_of(S(1))),
    )
    assert rows * columns == 16 and min(rows, columns) > 1
    # The weight [columns of W, rows of W] is stored in blocks on the same grid.
    assert weight.axes_of(S(1)) == out.axes_of(S(0)) and weight.axes_of(S(0)) == out.axes_of(S(1))
    along_rows = 4 * batch / rows * wide * (columns - 1) / columns
    along_columns = 4 * wide / columns * wide * (rows - 1) / rows
    cost = figures(plan).layer_cost(next(layer for layer in plan.layers if layer.name == "fc2"))
    assert cost.nic_bytes.forward == pytest.approx(along_rows + along_columns, rel=2e-3)


def test_a_scheme_that_does_not_fit_says_how_much_it_needs():
    where = cluster("piz_daint", 4, 1)
    whole = baseline_plans(WIDE, where)["data parallel"][0].memory_bytes
    assert whole is not None
    plan = find_plan(WIDE, where, PlanOptions(memory_limit_bytes=0.8 * whole))
    record = next(b for b in plan.baselines if b.name == "data parallel")
    assert not record.fits
    assert record.memory_bytes is not None and record.memory_bytes > plan.memory_limit_bytes
    assert "does not fit" in explain(plan)


def test_where_memory_binds_a_scheme_runs_its_blocks_again():
    graph, where = residual(6, 4096, 64), cluster("piz_daint", 4, 1)
    free = baseline_plans(graph, where, PlanOptions(micro_batches=1))
    for name, (before, _) in free.items():
        assert before.memory_bytes is not None and before.iteration_s is not None
        limit = 0.7 * before.memory_bytes
        record, plan = baseline_plans(
            graph, where, PlanOptions(micro_batches=1, memory_limit_bytes=limit)
        )[name]
        assert plan is not None and plan.recomputed, name
        assert "blocks run again" in record.topology
        assert figures(plan).cost.iteration_s == pytest.approx(record.iteration_s, rel=1e-6)
        assert (
            figures(plan).cost.iteration_s > before.iteration_s
            and figures(plan).cost.memory_bytes <= limit
        )
        without = baseline_plans(
            graph,
            where,
            PlanOptions(micro_batches=1, memory_limit_bytes=limit, checkpointing="none"),
        )
        assert not without[name][0].fits


def test_where_all_blocks_are_run_again_the_schemes_do_so_too():
    graph, where = residual(4, 256, 64), cluster("piz_daint", 4, 1)
    plan = find_plan(graph, where, PlanOptions(checkpointing="all"))
    fitting = [(r.topology, r.iteration_s) for r in plan.baselines if r.iteration_s is not None]
    assert fitting and all("blocks run again" in topology for topology, _ in fitting)
    assert all(figures(plan).cost.iteration_s <= seconds * (1 + 1e-5) for _, seconds in fitting)


@pytest.mark.parametrize("again", [False, True])
def test_memory_at_any_number_of_micro_batches_follows_from_the_first_three(again):
    graph, counts = residual(4, 256, 64), (1, 2, 4, 8, 16)
    blocks = repeated_blocks(micro_graph(graph, 1)) if again else ()
    model = CostModel(cluster("piz_daint", 4, 1))
    pricer = BaselinePricer(MicroBatches.of(graph), counts, model, again=(blocks,))
    for family in FAMILIES:
        for variant in variants(family, model.cluster.mesh):
            tables = [pricer._tables(parts, blocks) for parts in counts]
            direct = [
                least_memories((t,), (n,), variant)[0] for t, n in zip(tables, counts, strict=True)
            ]
            # what is there once in all and not once a micro-batch is a few bytes
            assert least_memories(tables[:3], counts, variant) == pytest.approx(direct, rel=1e-3)


def test_a_batch_that_does_not_divide_is_no_data_parallelism():
    plan = find_plan(mlp(4, (64, 128, 64)), cluster("laptop", 4, 2))
    record = next(b for b in plan.baselines if b.name == "data parallel")
    assert not record.fits and record.memory_bytes is None
    assert "cannot split every operator" in explain(plan)


def test_one_row_at_a_time_is_no_hindrance_without_data_axes():
    graph = attention(1, 4, 8, 16, 4)
    record, plan = baseline_plans(graph, cluster("piz_daint", 4, 1), PlanOptions(micro_batches=4))[
        "Megatron"
    ]
    assert record.topology == "tensor 4" and plan is not None


def test_the_plan_records_them_and_survives_the_file():
    plan = find_plan(WIDE, cluster("piz_daint", 4, 2))
    assert [b.name for b in plan.baselines] == [f.name for f in FAMILIES]
    closest = plan.closest_baseline
    assert closest is not None and closest.iteration_s == min(
        b.iteration_s for b in plan.baselines if b.iteration_s is not None
    )
    again = Plan.loads(plan.dumps())
    assert again.baselines == plan.baselines
    told = report(plan).to_json()["schemes"]
    names = {scheme["name"] for scheme in told if scheme["fits"]}
    assert names == {"this plan", *(b.name for b in plan.baselines if b.fits)}
    assert "times as long" in explain(plan)


@given(
    graph=st.sampled_from(GRAPHS),
    machine=st.sampled_from(MACHINES),
    shape=st.sampled_from([(1, 2), (2, 2), (4, 1), (2, 4), (3, 2)]),
    optimizer=st.sampled_from(["sgd", "adam"]),
    tight=st.sampled_from([1.0, 0.8, 0.6]),
)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_no_plan_is_worse_than_a_baseline(graph, machine, shape, optimizer, tight):
    where = cluster(machine, *shape)
    free = find_plan(graph, where, PlanOptions(optimizer=optimizer, baselines=False))
    limit = tight * figures(free).cost.memory_bytes
    try:
        plan = find_plan(graph, where, PlanOptions(optimizer=optimizer, memory_limit_bytes=limit))
    except ValueError:
        priced = baseline_plans(
            graph, where, PlanOptions(optimizer=optimizer, memory_limit_bytes=limit)
        )
        assert not any(record.fits for record, _ in priced.values())
        return
    assert figures(plan).cost.memory_bytes <= limit * (1 + 1e-9)
    for record, rival in baseline_plans(
        graph, where, PlanOptions(optimizer=optimizer, memory_limit_bytes=limit)
    ).values():
        if rival is not None:
            assert figures(rival).cost.memory_bytes <= limit * (1 + 1e-6)
            assert figures(plan).cost.iteration_s <= figures(rival).cost.iteration_s * (1 + 1e-5), (
                record
            )


def test_where_only_split_storage_fits_the_search_finds_it():
    """It is no slower than ZeRO, and without ZeRO there is nothing as fast."""
    graph = mlp(4096, (512,) * 9)
    where = cluster("gcp_a100", 1, 8)
    plain = find_plan(graph, where, PlanOptions(baselines=False))
    limit = 0.5 * figures(plain).cost.memory_bytes
    found = find_plan(graph, where, PlanOptions(memory_limit_bytes=limit))
    whole = PlanOptions(memory_limit_bytes=limit, zero=False, baselines=False)
    without = find_plan(graph, where, whole)
    assert any(edge.zero_stage for edge in found.stage.edges.values())
    assert not any(edge.zero_stage for edge in without.stage.edges.values())
    assert figures(found).cost.memory_bytes <= limit
    assert figures(found).cost.iteration_s < figures(without).cost.iteration_s
    rivals = [b.iteration_s for b in found.baselines if b.iteration_s is not None]
    assert figures(found).cost.iteration_s <= min(rivals) * (1 + 1e-6)


def test_the_pricer_takes_the_counts_it_is_given():
    model = CostModel(cluster("piz_daint", 4, 1))
    pricer = BaselinePricer(MicroBatches.of(WIDE), (4,), model)
    assert {rival.record.micro_batches for rival in pricer.all()} == {4}


@pytest.mark.parametrize("overlap", [False, True])
def test_the_nearest_scheme_is_the_fastest_of_all(overlap):
    nearest, where = set(), cluster("piz_daint", 2, 2)
    deep = residual(2, 64, 16)
    for graph, limit in ((deep, math.inf), (deep, 1e4), (mlp(8, (512, 512)), math.inf)):
        again = tried_again(repeated_blocks(micro_graph(graph, 1)), "auto")
        model = CostModel(where, memory_limit_bytes=limit, overlap=overlap)
        pricer = BaselinePricer(MicroBatches.of(graph), (1, 2), model, again=again)
        schemes = Schemes(pricer, None, tries_two=overlap)
        found, (every, _) = schemes.nearest(), schemes.all()
        fits = (scheme for scheme in every if scheme.record.fits)
        least = min(fits, key=lambda scheme: scheme.seconds, default=None)
        assert (found and found.record) == (least and least.record)
        nearest.add(found and found.record.name)
    assert len(nearest) == (3 if overlap else 2)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8, 1.5])
def test_a_family_is_as_fast_as_its_topologies_solved_exactly(share, monkeypatch):
    """But for the gap that is allowed; by the sum of memory, whatever the fullest moment."""

    monkeypatch.setattr(BaselinePricer, "_within_limit", lambda _, found: found)  # the fullest
    graph, where, counts = residual(4, 256, 64), cluster("piz_daint", 4, 2), (1, 2, 4, 8)
    needed = [b.memory_bytes for b in find_plan(graph, where).baselines]
    model = CostModel(where, memory_limit_bytes=share * min(filter(None, needed)))
    again = tried_again(repeated_blocks(micro_graph(graph, 1)), "auto")
    pricer = BaselinePricer(MicroBatches.of(graph), counts, model, again=again)

    def exact(ways):
        problems = (
            pricer._of_variant(way).problem
            for way in ways
            if pricer._tables(way.parts, way.blocks).divides(way.variant)
        )
        results = (auto(problem, np.random.default_rng(0), Budget()) for problem in problems)
        return next((result.cost for result in results if result), math.inf)

    for family in FAMILIES:
        tried = variants(family, model.cluster.mesh)
        topologies = [ways for blocks in again for ways in pricer._ways(tried, blocks)]
        least = min(map(exact, topologies), default=math.inf)
        found = pricer._best(family, tried)
        assert found.record.fits == (least < math.inf)
        if found.record.fits:
            assert least * (1 - 1e-6) <= found.seconds <= least * (1 + 5e-4)


def test_no_scheme_takes_less_than_it_computes():
    """Whatever it hides, so a way that computes longer than the fastest takes is not searched."""
    graph = residual(4, 1024, 512)
    model = CostModel(cluster("gcp_a100", 1, 4), overlap=True)
    blocks = repeated_blocks(micro_graph(graph, 1))
    pricer = BaselinePricer(MicroBatches.of(graph), (1, 2), model, again=((), blocks))
    hardly_more = 0
    for family in FAMILIES:
        for ways in pricer._ways(variants(family, model.cluster.mesh), ()):
            planned = pricer._fastest(family, [ways], None)
            assert planned is not None
            way, found = planned
            least_s = pricer._computing_s(way)
            assert least_s <= found.step_s * (1 + 1e-9)
            hardly_more += found.step_s < 1.5 * least_s
            assert pricer._computing_s(dataclasses.replace(way, blocks=blocks)) > 1.2 * least_s
    assert hardly_more


def test_two_micro_batches_in_flight_count_where_they_may_be_the_plan():
    """Else a scheme is told as it is known, and no turns are looked for."""
    micro, counts = MicroBatches.of(attention(2, 64, 128, 512, 8)), (2, 4)
    model = CostModel(cluster("piz_daint", 8, 1), overlap=True)
    one = BaselinePricer(micro, counts, model)
    known = one.all()
    found = one.in_turns(known, math.inf)
    assert any(f.seconds < k.seconds for f, k in zip(found, known, strict=True))
    assert all(f is k or f.seconds < k.seconds for f, k in zip(found, known, strict=True))
    assert one.in_turns(known, min(k.seconds for k in known) / 10) == known
