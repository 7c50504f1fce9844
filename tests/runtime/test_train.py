"""Small models trained on real processes are those trained on one device."""

import json

import pytest

from autoddl.api import trace
from autoddl.plans import Plan
from tests.clusters import cluster
from tests.planned import planned
from tests.runtime.training import build


def train(launch, nproc, *cases, timeout=280):
    """Each case is compared by the worker, which prints a line."""
    out = launch("train", nproc, json.dumps(cases), timeout=timeout)
    assert out.count("equal: ") == len(cases), out


@pytest.mark.parametrize(
    ("model", "seeds"),
    [
        pytest.param(model, (0, 1), marks=pytest.mark.full)
        for model in ("transformer", "convnet", "towers")
    ],
)
def test_debug_mode_and_random_plans_on_2x2(launch, model, seeds):
    train(launch, 4, *({"model": model, "seed": seed, "debug": True} for seed in seeds))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_micro_batches_and_own_rows(launch, seed):
    case = {"model": "transformer", "micro_batches": 2, "own_rows": True, "optimizer": "adam"}
    train(launch, 4, {**case, "seed": seed, "debug": seed == 1})


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_gradients_in_buckets_are_those_that_travel_one_by_one(launch, part):
    """To the bit where the sums are the same, also where they leave late; in debug mode, with

    micro-batches, with ZeRO, and with blocks that run again.
    """
    case = {"model": "transformer", "data_parallel": True}
    kinds = "together", "single", "late"
    together, single, late = ({**case, "buckets": kind} for kind in kinds)
    cases = [
        {**late, "model": "stack", "zero": 3, "micro_batches": 2, "rows": 16, "recomputed": True},
        {**together, "micro_batches": 4, "rows": 16},
        {**together, "debug": True}, {**single, "zero": "mixed"},
        {**single, "data_parallel": False, "optimizer": "adam"},
        {**late, "zero": 3, "micro_batches": 2, "rows": 16},
    ]  # fmt: skip
    train(launch, 4, *(cases[:1], cases[1:4], cases[4:])[part])


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_micro_batches_in_flight_together_give_the_bits_of_one_by_one(launch, part):
    """In turns at random: in debug mode, in groups, with ZeRO, and BatchNorm's moving statistics.

    And with gradients that leave while the last one is not through.
    """
    case = {"model": "transformer", "micro_batches": 2, "turns": 2}
    ahead = {**case, "data_parallel": True, "micro_batches": 4, "rows": 32}
    norm = {"model": "convnet", "batch_norm": "micro_batch", "buckets": "single"}
    cases = [{**ahead, "zero": "mixed"}, {**case, **norm}, {**case, "debug": True}]
    train(launch, 4, cases[part])


@pytest.mark.full
@pytest.mark.parametrize("model", ["perceptron", "ladder", "towers", "llama", "stack", "weighing"])
def test_more_models_with_micro_batches_in_flight(launch, model):
    """Two or three of them, what they keep or run again; masks of dropout."""
    case = {"model": model, "micro_batches": 6, "rows": 24}
    cases = [{**case, "turns": turns, "seed": seed} for turns in (2, 3) for seed in (0, 1)]
    if model == "stack":
        cases = [{**one, "recomputed": True} for one in cases]
        dropped = {"model": "dropped stack", "alone": False}
        cases += [{**one, **dropped} for one in cases]
    train(launch, 4, *cases)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_three_processes(launch, seed):
    three = {"model": "perceptron", "nodes": 1, "gpus": 3, "rows": 9}
    train(launch, 3, {**three, "seed": seed})


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["convnet", "transformer", "towers"])
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (2, 2), (2, 4)])
def test_ten_steps(launch, model, nodes, gpus, optimizer):
    options = {"nodes": nodes, "gpus": gpus, "steps": 10, "optimizer": optimizer}
    train(launch, nodes * gpus, *({"model": model, "seed": seed, **options} for seed in (2, 3, 4)))


@pytest.mark.full
def test_random_assignments_of_three_layers(launch):
    """Every third one takes all signatures alike, also those that share no work."""
    step = {"optimizer": "whole gradient", "steps": 1}
    case = {"model": "perceptron", "nodes": 2, "gpus": 4, "rows": 16, **step}
    train(launch, 8, *({**case, "seed": n, "favour_splits": n % 3 > 0} for n in range(200)))


@pytest.mark.full  # with buckets and ZeRO it is above
def test_blocks_that_run_again_give_the_same_bits(launch):
    """Equal to the same plan without recomputation, and, within rounding, to one process."""
    case = {"model": "stack", "optimizer": "adam", "micro_batches": 2, "recomputed": True}
    train(launch, 4, {**case, "steps": 2})


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_masks_and_moving_statistics_of_blocks_that_run_again(launch, optimizer):
    """Masks are drawn alike, moving statistics change once."""
    cases = [
        {"model": model, "micro_batches": parts, "seed": seed, "alone": model == "stack"}
        for model in ("stack", "dropped stack", "conv stack")
        for parts in (1, 2)
        for seed in (2, 3)
    ]
    same = {"optimizer": optimizer, "steps": 2, "recomputed": True}
    train(launch, 4, *({**case, **same} for case in cases), timeout=500)


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.timeout(1500)
def test_models_that_nobody_wrote(launch, count):
    """By the plan that is found and by a random one."""
    same = {"steps": 2, "evaluated": []}
    cases = [
        {"model": f"random:{model}", "seed": seed, "debug": debug, **same}
        for model in range(count)
        for seed, debug in ((None, False), (model, True))
    ]
    train(launch, 4, *cases, timeout=1400)


@pytest.mark.full  # of graphs that are written down it is in planner/test_memory_steps.py
@pytest.mark.timeout(1500)
@pytest.mark.filterwarnings("ignore::autoddl.runtime.traced.OpaqueWarning")
def test_models_that_nobody_wrote_are_planned_within_any_limit():
    for seed in range(200):
        model, loss, batch = build(f"random:{seed}")
        graph, where = trace(model, *batch(seed, 8), loss=loss), cluster("gcp_a100", 2, 2)
        free = planned(graph, where, baselines=False, gap=0.0, overlap=False)
        Plan.on_one_mesh(free.stage).verify()
        bound = free.stage.search.lower_bound_s
        assert free.cost.iteration_s == pytest.approx(bound, rel=3e-6), seed
        for share in (0.8, 0.6):
            limit = share * free.memory_peak("executor").bytes
            try:
                smaller = planned(graph, where, memory_limit_bytes=limit, baselines=False)
            except ValueError:
                break
            assert smaller.memory_peak("executor").bytes <= limit, seed
