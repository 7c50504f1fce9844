"""Steps in parallel equal steps of one process in eager torch: models x plans, on processes."""

import itertools
import json
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "train.py"
FULL = pytest.mark.full
LOSSES, PARAMETERS = 1e-5, 1e-4
MORE_THREADS = 15  # than the first plan: a group has three, and others may ask for other groups


@pytest.fixture
def compare(torch_jobs):
    """Holds what several processes compute to what one does; scheme -> what was found."""

    def by(model, optimizer, steps, micro_batches, schemes, shape=(2, 2)):
        words = (model, optimizer, steps, *shape, micro_batches, *schemes)
        ranks = shape[0] * shape[1]
        status, out = torch_jobs.run(WORKER, ranks, *map(str, words), timeout=280, prefix=False)
        assert status == 0, out
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert [result["scheme"] for result in found] == list(schemes)
        for result in found:
            assert result["losses"] <= LOSSES and result["parameters"] <= PARAMETERS, result
        # a trainer after another one finds the groups that it needs made
        assert found[-1]["threads"] <= found[0]["threads"] + MORE_THREADS, found
        return {result["scheme"]: result for result in found}

    return by


ALL = "data_parallel", "random:1", "searched"


@pytest.mark.parametrize(
    ("model", "schemes"),
    [
        ("mlp", ALL[:2]),  # Llama's is in two stages and, in 16 bits, on one mesh
        *(pytest.param(m, ALL, marks=FULL) for m in ("mlp", "gpt", "llama", "resnet")),
    ],
)
def test_steps_equal_one_process(compare, model, schemes):
    found = compare(model, "momentum", 4, 1, schemes)
    assert found["data_parallel"]["split_ops"] > found["data_parallel"]["ops"] / 3


@FULL
def test_modules_that_run_as_they_are(compare):
    found = compare("as_they_are", "momentum", 4, 2, ("data_parallel", "zero:mixed", "stages:2"))
    assert found["data_parallel"]["split_ops"] > found["data_parallel"]["ops"] / 2
    compare("normalised", "momentum", 4, 1, ("mostly_data", "random:1"))


@FULL
def test_collectives_of_unequal_pieces_run_again_after_ten_steps(compare):
    """As `runtime.measure.training` times them: their order and sizes are those of the step."""
    found = compare("mlp", "momentum", 11, 1, ("random:2@3-1", "products:kn"))
    assert found["products:kn"]["partial"] > 2


@FULL
@pytest.mark.parametrize("shape", [(2, 2), (2, 4)])
def test_products_split_in_each_way_on_each_axis(compare, shape):
    """Rows, columns and the terms of sums, which are Partial then: on 2x2 and on 2x2x2."""
    axes = 2 if shape == (2, 2) else 3
    ways = ["".join(way) for way in itertools.product("mnk", repeat=axes)]
    found = compare("even", "momentum", 2, 1, [f"products:{way}" for way in ways], shape)
    assert all(found[f"products:{way}"]["partial"] > 1 for way in ways if "k" in way)


def test_storage_split_and_blocks_run_again_and_hints(compare):
    found = compare("gpt", "adam", 4, 2, ("zero:mixed", "zero-again:3", "hinted"))
    assert {1, 2, 3} <= set(found["zero:mixed"]["stages"])
    assert found["zero-again:3"]["blocks"] > 1


def test_two_stages(compare):
    found = compare("llama", "momentum", 4, 2, ("stages:2",))
    assert found["stages:2"]["pipeline"] == 2


@FULL
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_shares_known_schemes_and_turns(compare, model):
    uneven = ("searched@3-1", "data_parallel@3-1", "random:1@7-1", "zero:mixed@3-1")
    compare(model, "momentum", 3, 1, uneven)
    idle = "searched@2-0-1-1", "data_parallel@2-1-1-0", "zero:mixed@2-1-1-0"
    compare(model, "momentum", 3, 1, idle, shape=(4, 1))
    known = ("ZeRO", "Megatron+ZeRO", "SUMMA", "turns:searched", "turns:data_parallel")
    compare(model, "momentum", 3, 2, known)


@FULL
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_random_plans(compare, model):
    compare(model, "momentum", 2, 1, tuple(f"random:{seed}" for seed in range(12)))
