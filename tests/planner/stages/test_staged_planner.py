"""Plans with stages: which are chosen."""

import dataclasses
import json
import math

import numpy as np
import pytest

from autoddl import explain
from autoddl.cluster.link import Link
from autoddl.cost.model import CostModel, Ends, StepPrice
from autoddl.cost.recompute import Recomputation
from autoddl.graph.cut import cut_graph
from autoddl.planner.asked import cost_model
from autoddl.planner.estimate import StepParts, after_passes, one_at_a_time
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.planner.stages.stage_prices import StagePrices
from autoddl.planner.stages.task import Shape
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.tables import Tables, build_tables
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.report import report
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.redistribute import PathTable
from autoddl.search.problem import SearchResult
from tests.clusters import cluster
from tests.graph.test_cut import u_shaped
from tests.graphs import attention, mlp, tied

MLP = mlp(16, (32, 64, 64, 64, 32))
DEEP = attention(8, 8, 6, 16, 2)


def test_tied_weights_count_in_every_stage_that_has_them():
    machine = cluster("laptop", 2, 1)
    prices = StagePrices(cut_graph(tied(8, 16)), CostModel(machine))
    both, first, second = (
        prices.price(a, b, Shape(1, 1), 1, 1) for a, b in ((0, 2), (0, 1), (1, 2))
    )
    assert both is not None and first is not None and second is not None
    # weight, two moments, and one gradient of all its readers
    assert both.fixed_bytes == first.fixed_bytes == second.fixed_bytes == 4 * 16 * 16 * 4
    assert first.once_s > both.once_s  # the exchange of the gradient
    plan = find_plan(tied(8, 16), machine, PlanOptions(stages=2, micro_batches=2))
    assert figures(plan).travel.shared_params == {"weight": (0, 1)}
    assert "weight is held by stages 0, 1" in explain(plan)


def test_interleaved_parts_share_a_stage():
    plan = find_plan(
        MLP,
        cluster("laptop", 2, 2),
        PlanOptions(stages=2, chunks=2, schedule="interleaved-1f1b", micro_batches=4),
    )
    assert plan.num_stages == 2
    places = [stage.place for stage in plan.stages]
    assert places[:2] == places[2:] and places[0] != places[1]
    assert {(link.source, link.target) for link in figures(plan).travel.links} == {
        (0, 1),
        (1, 2),
        (2, 3),
    }
    assert len(figures(plan).memory_bytes) == 2 and figures(plan).schedule.chunks == 2
    assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert "2 stages of 2 parts" in explain(plan) and "\npart 3\n" in explain(plan)
    with pytest.raises(ValueError, match="4 parts are not 3 on each stage"):
        Plan.from_json({**plan.to_json(), "chunks": 3})


def test_long_skips_are_links_of_their_own():
    plan = find_plan(
        u_shaped(8, 32, 3),
        cluster("laptop", 4, 1),
        PlanOptions(stages=4, micro_batches=4, schedule="eager-1f1b"),
    )
    skips = [link for link in figures(plan).travel.links if link.target > link.source + 1]
    assert skips and "(long skip)" in explain(plan)
    assert {(link.source, link.target) for link in figures(plan).travel.links} == set(
        figures(plan).schedule.flows
    )


def test_the_number_of_stages_is_chosen():
    """Latency between hosts makes splitting every layer dear; on one device there is one stage."""
    assert isinstance(find_plan(MLP, cluster("laptop", 1, 1), PlanOptions(stages="auto")), Plan)
    graph = mlp(64, (1024,) * 9)
    slow = cluster("laptop", 2, 1)
    slow = dataclasses.replace(slow, inter=Link(alpha_s=0.005, beta_s_per_byte=1e-8))
    chosen = find_plan(graph, slow, PlanOptions(stages="auto"))
    assert [s.last - s.first for s in chosen.stages] == [4, 4]
    assert chosen.micro_batches > 1
    assert figures(chosen).iteration_s < figures(find_plan(graph, slow)).cost.iteration_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 5}, "5 stages are more than the model's 4 layers"),
        ({"stages": 2, "micro_batches": 3}, "16 does not divide into 3 micro-batches"),
        ({"stages": 2, "memory_limit_bytes": 2e4}, "fits the memory limit"),
        ({"stages": 2, "schedule": "2f2b"}, "unknown schedule '2f2b'"),
        ({"stages": 2, "chunks": 2}, "other schedules have 1; got 2 for 1f1b"),
        (
            {"stages": "auto", "schedule": "interleaved-1f1b", "chunks": 2},
            "takes a given number of stages",
        ),
        (
            {"stages": 2, "schedule": "interleaved-1f1b", "chunks": 2, "micro_batches": 1},
            "1 micro-batches do not divide by 2 stages",
        ),
        (
            {"stages": 2, "schedule": "interleaved-1f1b", "chunks": 3, "micro_batches": 4},
            "2 stages of 3 parts are more than the model's 4 layers",
        ),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        find_plan(MLP, cluster("laptop", 2, 2), PlanOptions(**options))


@pytest.mark.full
def test_gpt3_on_a_thousand_devices():
    """The memory suffices with recomputation, and each stage is near the best for its layers."""
    from autoddl.runtime.oneflow.trace.entries import trace_entry

    graph = trace_entry("gpt3_175b")
    machine = cluster("gcp_a100", 128, 8)
    options = PlanOptions(stages="auto", baselines=False, overlap=False)
    plan = find_plan(graph, machine, options)
    own = [stage_figures(stage) for stage in plan.stages]
    assert max(f.required_bytes() for f in own) <= machine.device.memory_bytes
    assert all(stage.recomputed for stage in plan.stages)
    # the last one runs 11 of its 12 blocks again; its bound is of other blocks, too
    assert all(f.gap is not None and f.gap < 1e-3 for f in own)
    compute_s = sum(f.cost.compute_s for f in own) / plan.num_stages
    assert figures(plan).iteration_s < 1.35 * compute_s


def test_stages_in_mixed_precision():
    """Halved tensors between the stages, master copies in each; the file keeps the precision."""
    machine = cluster("gcp_a100", 2, 2)
    asked = PlanOptions(stages=2, micro_batches=4, baselines=False)
    found, whole = (
        find_plan(DEEP, machine, dataclasses.replace(asked, precision=precision))
        for precision in ("float16", "float32")
    )
    assert found.precision == "float16" and whole.precision == "float32"
    assert {stage.precision for stage in found.stages} == {"float16"}
    for halved, full in zip(
        figures(found).travel.reshards.values(),
        figures(whole).travel.reshards.values(),
        strict=True,
    ):
        assert 2 * halved[0].spec.bytes == full[0].spec.bytes
    again = Plan.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found and report(again).to_json()["precision"] == "float16"
    again.check_model(DEEP)
    with pytest.raises(ValueError, match="no float16 rate"):
        find_plan(DEEP, cluster("laptop", 2, 2), PlanOptions(stages=2, precision="float16"))


def test_one_stage_in_mixed_precision():
    found = find_plan(
        DEEP, cluster("gcp_a100", 1, 1), PlanOptions(stages="auto", precision="float16")
    )
    assert found.precision == "float16"
    found.check_model(DEEP)


def test_gradients_of_stages_travel_in_buckets_and_those_of_known_schemes():
    """Beside the last pass of the first stage; others wait for what the second one gives back."""
    graph, machine = mlp(1024, (512,) * 9), cluster("laptop", 4, 1)
    asked = PlanOptions(stages=2, micro_batches=4)
    serial = find_plan(graph, machine, dataclasses.replace(asked, overlap=False))
    plan = find_plan(graph, machine, asked)
    assert all(stage.buckets for stage in plan.stages)
    assert not any(stage.buckets for stage in serial.stages)
    first, second = figures(plan).prices
    assert first.hidden_s > 0 and second.hidden_s == 0
    assert figures(plan).iteration_s < 0.97 * figures(serial).iteration_s
    before = {b.name: b.iteration_s or 0.0 for b in serial.baselines}
    after = {b.name: b.iteration_s or 0.0 for b in plan.baselines}
    assert all(after[name] < seconds for name, seconds in before.items())
    late = dataclasses.replace(asked, schedule="zb-h1")
    assert not any(stage.buckets for stage in find_plan(graph, machine, late).stages)


@pytest.mark.parametrize(
    "where", [("laptop", 2, 2), pytest.param(("gcp_a100", 2, 2), marks=pytest.mark.full)]
)
@pytest.mark.parametrize("rows", [64, pytest.param(1024, marks=pytest.mark.full)])
def test_what_a_choice_for_a_stage_costs_at_a_price_is_no_more_than_its_step(
    where: tuple[str, int, int], rows: int
):
    """So the least cost at a price is a bound; and no choice is clearly better than the plan."""
    graph, machine = mlp(rows, (256, 512, 256, 512, 128)), cluster(*where)
    options = PlanOptions(stages=2, micro_batches=2, baselines=False)
    for stage in find_plan(graph, machine, options).stages:
        model = dataclasses.replace(cost_model(graph, machine, options), cluster=stage.cluster)
        given = stage.graph, stage.micro_batches, Recomputation(stage.graph, (), stage.in_flight)

        def tables_at(
            price: StepPrice | None, zero: bool = False, model=model, given=given
        ) -> Tables:
            graph, parts, again = given
            own = dataclasses.replace(model, price=price)
            tables = build_tables(graph, own, parts, Space(zero=zero), again=again)
            assert tables is not None
            return tables

        prices = after_passes() if stage.graph.gives_back else one_at_a_time(Ends())
        whole, priced = tables_at(None), [tables_at(price).problem for price in prices[::5]]
        paths = PathTable(stage.mesh, model.comm.price, model.comm.collectives)
        rng, best_s = np.random.default_rng(0), math.inf
        for tables in (whole, tables_at(None, zero=True)):
            for _ in range(100):
                choice = rng.integers(tables.problem.sizes())
                cost, memory = tables.problem.evaluate(choice)
                if not math.isfinite(cost):
                    continue
                found = Candidate(tables, SearchResult(choice, cost, memory, 1, "any"), paths)
                best_s, most_s = min(best_s, found.step_s), found.step_s * (1 + 1e-6)
                parts = StepParts.of(found.maker, stage.micro_batches, prices[0].ends)
                assert max(map(parts.at, prices)) <= most_s
                if tables is whole:
                    assert max(problem.evaluate(choice)[0] for problem in priced) <= most_s
        assert stage_figures(stage).cost.iteration_s <= best_s * 1.01
