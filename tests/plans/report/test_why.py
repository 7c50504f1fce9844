"""Why a plan is as it is: sentences that say what its figures say, for all kinds of plans."""

from dataclasses import replace

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.format import format_bytes, format_seconds
from autoddl.plans.report.why import why
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.plans.example import STAGED

LAPTOP = cluster("laptop", 2, 2)
MODEL = residual(2, 512, 1024)


def sentences(plan: Plan) -> dict[str, str]:
    told = why(plan)
    values = {figure.key: str(figure.value) for figure in told.figures}
    assert list(told.notes) == [value for value in values.values() if value]
    return values


def test_it_names_the_splits_and_what_data_parallelism_would_take():
    plan = find_plan(MODEL, cluster("piz_daint", 2, 2))
    told, cost = sentences(plan), figures(plan).cost
    (data,) = (b for b in plan.baselines if b.name == "data parallel")
    assert data.communication_s and data.communication_s > cost.exposed_s
    assert str(plan.layers[0].split) in told["what"]
    assert f"would wait {format_seconds(data.communication_s)} a step" in told["what"]
    assert f"this plan waits {format_seconds(cost.exposed_s)} for" in told["what"]
    closest = plan.closest_baseline
    assert closest and closest.iteration_s
    saved = 1 - cost.iteration_s / closest.iteration_s
    assert f"saves {saved:.1%} of a step of {closest.name}" in told["saves"]
    assert told["memory"] == ""


def test_data_parallelism_itself_says_what_its_gradients_take():
    plan = find_plan(mlp(65536, (64, 64, 64)), cluster("piz_daint", 4, 1))
    assert {str(layer.split) for layer in plan.layers} == {"batch 4"}
    told, cost = sentences(plan), figures(plan).cost
    synced_s = cost.inter_s.gradient_sync + cost.intra_s.gradient_sync
    size = sum(plan.graph.tensors[op.outputs[0]].spec.bytes for op in plan.graph.params)
    assert told["what"].startswith("Splits all layers by batch 4: exchanging the gradients")
    assert f"({format_bytes(size)}) takes {format_seconds(synced_s)}" in told["what"]
    least = min(layer.alternative_extra_s for layer in plan.layers if layer.alternative)
    assert f"adds {format_seconds(least)} or more" in told["what"]
    assert "takes as long as data parallel (data 4)" in told["saves"]
    (data,) = (b for b in plan.baselines if b.name == "data parallel")
    longer = replace(
        data,
        iteration_s=1.5 * (data.iteration_s or 0.0),
        communication_s=cost.exposed_s + 0.3 * (data.iteration_s or 0.0),
        micro_batches=2,
    )
    told = sentences(replace(plan, baselines=(longer,)))
    waits = f"waits {format_seconds(cost.exposed_s)} instead of"
    assert "layers are split alike there: it" in told["saves"]
    assert f"it has 1 micro-batch instead of 2 and {waits}" in told["saves"]
    assert f"and computes for {format_seconds(cost.compute_s)} instead of" in told["saves"]


def test_short_memory_is_named_with_what_is_done():
    where = cluster("gcp_a100", 2, 2)
    free = find_plan(MODEL, where, PlanOptions(baselines=False, overlap=False))
    limit = 0.9 * figures(free).needed_bytes[0]
    asked = PlanOptions(memory_limit_bytes=limit, overlap=False, baselines=False)
    plan = find_plan(MODEL, where, asked)
    told = sentences(plan)
    done = {
        "forward again": bool(plan.recomputed),
        "split (ZeRO)": any(e.zero_stage for e in plan.stage.edges.values()),
        "micro-batches": plan.micro_batches > plan.stage.in_flight,
    }
    assert any(done.values())
    assert {how: how in told["memory"] for how in done} == done
    assert (
        f"{format_bytes(figures(plan).needed_bytes[0])} of {format_bytes(limit)}"
        in (told["memory"])
    )


def test_layers_in_copies_are_not_called_split():
    """Small layers beside a wide one cost less where every device computes them."""
    plan = find_plan(mlp(64, (*(16,) * 12, 4096, 8)), LAPTOP)
    whole = [layer for layer in plan.layers if str(layer.split) == "copies 4"]
    assert 0 < len(whole) < len(plan.layers)
    told = sentences(plan)["what"]
    assert "on every device (" in told and "by copies" not in told
    assert told.count("plits ") == 1


def zero_plan() -> Plan:
    """Of a known scheme, which has no next best split to show."""
    plan = baseline_plans(mlp(16, (32, 64, 32)), LAPTOP)["ZeRO"][1]
    assert plan is not None and not any(layer.alternative for layer in plan.layers)
    return plan


@pytest.mark.parametrize(
    ("plan", "what", "saves"),
    [
        (STAGED, "Cuts the model into 2 stages", "of the known schemes"),
        (zero_plan(), "Splits all layers by batch 4: exchanging the gradients", ""),
        (find_plan(MODEL, cluster("laptop", 1, 1)), "One device does all", ""),
        (find_plan(mlp(8, (16, 16)), LAPTOP), "Every device computes the whole", "known schemes"),
        (find_plan(MODEL, LAPTOP, PlanOptions(baselines=False)), "Splits ", "No known scheme was"),
        (
            find_plan(mlp(3, (4096, 4096, 4096)), cluster("gcp_a100", 1, 4)),
            "a batch of 3 does not divide over 4 devices",
            "",
        ),
    ],
    ids=["stages", "ZeRO", "one device", "replicated", "without baselines", "odd batch"],
)
def test_every_kind_of_plan_has_its_reason(plan, what, saves):
    told = sentences(plan)
    assert what in told["what"] and saves in told["saves"]


def test_a_batch_that_divides_is_not_blamed():
    """Attention of torch's own merges positions and rows: data parallelism has no split of it."""
    plan = find_plan(MODEL, cluster("piz_daint", 2, 2))
    (data,) = (b for b in plan.baselines if b.name == "data parallel")
    none = replace(data, memory_bytes=None, iteration_s=None, communication_s=None)
    told = sentences(replace(plan, baselines=(none,)))["what"]
    assert told.endswith(", as not every operator can be split by rows of the batch alone.")


def test_no_scheme_that_fits_is_said():
    plan = find_plan(MODEL, cluster("piz_daint", 2, 2))
    unfit = [replace(b, iteration_s=None, communication_s=None) for b in plan.baselines]
    told = sentences(replace(plan, baselines=tuple(unfit)))
    assert told["saves"] == "None of the known schemes fits the memory."
    data = next(b for b in plan.baselines if b.name == "data parallel")
    assert data.memory_bytes is not None
    assert f"data parallelism would need {format_bytes(data.memory_bytes)}" in told["what"]
