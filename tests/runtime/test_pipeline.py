"""Training in pipeline stages equals one process: losses, parameters, buffers."""

import json
import re

import pytest

from tests.runtime.conftest import run_worker
from tests.runtime.pipeline_cases import COUNTS, MESHES, MODELS, case, cases_of


def passes(launch, processes, cases, timeout=240.0):
    """The worker asserts; each case prints one line. Gives them."""
    out = launch("pipeline", processes, json.dumps(cases), timeout=timeout)
    lines = [line for line in out.splitlines() if "stages=" in line]
    assert len(lines) == len(cases), out
    return lines


TWO_STAGES = (
    case("perceptron", 2, 1, 2, "eager-1f1b", debug=True),
    case("perceptron", 1, 2, 2, "gpipe", 2, overlap=False),
    case("transformer", 2, 1, 2, "interleaved-1f1b", 2, chunks=2),
    case("stack", 2, 1, 2, "zb-h1", 2, recomputed=True),
    case("transformer", 2, 1, 2, "1f1b", 2),
    case("convnet", 2, 1, 2, "zb-h1", micro_batches=1, steps=2),
    case("transformer", 2, 1, 2, "1f1b", 4, delay=1, debug=True),
)


@pytest.mark.parametrize(
    "cases", [TWO_STAGES[:4], pytest.param(TWO_STAGES[4:], marks=pytest.mark.full)]
)
def test_two_stages(launch, cases):
    lines = passes(launch, 2, cases)
    assert all(
        "tied=1" in line
        for line, own in zip(lines, cases, strict=True)
        if own["model"] == "transformer"
    )
    chunked = [own.get("chunks") for own in cases]
    assert all(("stages=2x2" in line) == (n == 2) for line, n in zip(lines, chunked, strict=True))


def test_a_parameter_that_two_stages_have_and_one_or_none_trains(launch):
    names = "half tied", "frozen tied"
    cases = [case(names[0], 2, 1, 2, debug=True), case(names[1], 2, 1, 2)]
    assert all("tied=1" in line for line in passes(launch, 2, cases))


STORED_SPLIT = (
    case("dense", 2, 2, 2, "zb-h1", 4, zero=2),
    case("stack", 2, 2, 2, "1f1b", 4, zero=3, recomputed=True),
    case("dense", 2, 2, 2, "1f1b", 4, zero=1),
    case("transformer", 2, 2, 2, "eager-1f1b", 2, zero=3),
)


@pytest.mark.parametrize(
    "cases", [STORED_SPLIT[:1], pytest.param(STORED_SPLIT[1:], marks=pytest.mark.full)]
)
def test_parameters_stored_split(launch, cases):
    """Stages of two devices that divide every operator, by ZeRO's stages; one recomputes."""
    passes(launch, 4, [*cases], timeout=100)


def test_gradients_of_stages_in_buckets(launch):
    """To the bit as without, beside transfers between the stages."""
    full = case("transformer", 2, 2, 2, "1f1b", 2, buckets=True)
    (line,) = passes(launch, 4, [full], timeout=100)
    assert "tied=1" in line


@pytest.mark.full
@pytest.mark.parametrize("schedule", ["gpipe", "eager-1f1b", "zb-h1"])
def test_gradients_of_stages_in_buckets_in_all_schedules(launch, schedule):
    cases = [case(m, 2, 2, 2, schedule, 4, buckets=True) for m in ("transformer", "stack", "dense")]
    passes(launch, 4, cases, timeout=200)


@pytest.mark.alone
def test_emulated_passes_take_their_time(launch):
    assert launch("pipeline_emulated", 2, timeout=100).count("emulated:") == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param("raises", "failed and ends the job: TypeError", marks=pytest.mark.full),
        ("killed", "rank 1 of 2 .*was killed by SIGKILL .*and ends the job"),
    ],
)
def test_a_rank_that_dies_in_mid_schedule_ends_the_job(how, message):
    cases = [case("perceptron", 2, 1, 2, dies=how)]
    status, out = run_worker("pipeline", 2, json.dumps(cases), timeout=100)
    assert status not in (0, 124)
    assert re.search(message, out), out


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("nodes", "gpus"), MESHES)
def test_every_schedule(launch, nodes, gpus, model, counts):
    """The matrix of `pipeline_cases`, one job for several numbers of micro-batches."""
    cases = cases_of(model, nodes, gpus, counts)
    lines = passes(launch, nodes * gpus, cases, timeout=1700)
    alone = [line for line in lines if "stages=4x1" in line]  # skips over a stage need three
    assert model == "dense" or all("skips=0" not in line for line in alone)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS)
def test_stages_of_other_sizes_in_random_layouts(launch, model):
    """A stage of 2 between stages of 1."""
    passes(launch, 4, [case(model, 2, 2, 3, "1f1b", 2, seed=7)], timeout=300)


def test_random_reshardings_deliver(launch):
    assert "delivered 25," in launch("reshard", 4, "25", "0", timeout=120)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_hundred_random_reshardings_deliver(launch):
    """Meshes of 1 to 5 hosts of 1 to 6 devices, also 2 -> 3 hosts; sizes that nothing divides."""
    out = launch("reshard", 6, "200", "1", timeout=500)
    assert "delivered 200," in out and "(2, 3)" in out
