"""Training in pipeline stages equals one process: losses, parameters, buffers."""

import json

import pytest

from tests.backend.conftest import run_worker

MODELS = ("perceptron", "transformer", "ladder")  # plain, tied weights, long skips


def case(model, nodes, gpus, stages, schedule="1f1b", micro_batches=4, **more):
    return {
        "model": model, "nodes": nodes, "gpus": gpus, "stages": stages, "schedule": schedule,
        "micro_batches": micro_batches, **more,
    }  # fmt: skip


def passes(launch, processes, cases, timeout=240.0):
    """The worker asserts; each case prints one line. Gives them."""
    out = launch("pipeline", processes, json.dumps(cases), timeout=timeout)
    lines = [line for line in out.splitlines() if "stages=" in line]
    assert len(lines) == len(cases), out
    return lines


def test_two_stages(launch):
    lines = passes(
        launch,
        2,
        [
            case("perceptron", 2, 1, 2, "eager-1f1b"),
            case("perceptron", 1, 2, 2, "gpipe", 2, overlap=False),
            case("transformer", 2, 1, 2, "1f1b", 2),
            case("convnet", 2, 1, 2, micro_batches=1, steps=2),
        ],
    )
    assert "tied=1" in lines[2]


def test_a_rank_that_fails_in_mid_schedule_ends_the_job():
    cases = [case("perceptron", 2, 1, 2, dies=True)]
    status, out = run_worker("pipeline", 2, json.dumps(cases), timeout=100)
    assert status != 0
    assert "rank 1 of 2 failed and ends the job: TypeError" in out


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_every_schedule_and_number_of_micro_batches(launch, model):
    cases = [
        case(model, 2, 1, 2, schedule, m, overlap=m != 4)
        for schedule in ("gpipe", "1f1b", "eager-1f1b")
        for m in (1, 2, 4, 8)
    ]
    passes(launch, 2, cases, timeout=400)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_stages_of_several_devices_in_random_layouts(launch, model):
    """Two stages of 2, and a stage of 2 between stages of 1: other layouts on either side."""
    cases = [case(model, 2, 2, 2, "eager-1f1b", 2, seed=seed) for seed in range(3)]
    cases += [case(model, 2, 2, 3, "1f1b", 2, seed=7)]
    passes(launch, 4, cases, timeout=500)


@pytest.mark.full
@pytest.mark.parametrize("model", ("transformer", "ladder"))
def test_four_stages(launch, model):
    cases = [case(model, 4, 1, 4, s, m) for s, m in (("eager-1f1b", 8), ("1f1b", 4), ("gpipe", 2))]
    lines = passes(launch, 4, cases, timeout=400)
    assert all("skips=0" not in line for line in lines)


def test_random_reshardings_deliver(launch):
    assert "delivered 25," in launch("reshard", 4, "25", "0", timeout=120)


@pytest.mark.full
def test_two_hundred_random_reshardings_deliver(launch):
    """Meshes of 1 to 5 hosts of 1 to 6 devices, also 2 -> 3 hosts; sizes that nothing divides."""
    out = launch("reshard", 6, "200", "1", timeout=500)
    assert "delivered 200," in out and "(2, 3)" in out
