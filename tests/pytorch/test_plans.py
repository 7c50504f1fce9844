"""What a plan can say is carried out: small models of the runtime's own tests, on two processes.

The workers are those of `tests/runtime`, whose tests run with torch, too, where it is alone
installed; `make test-all` runs them so.
"""

import json
from pathlib import Path

import pytest

from tests.runtime.pipeline_cases import case

WORKERS = Path(__file__).parents[1] / "runtime" / "workers"
TWO = {"nodes": 1, "gpus": 2}
WORDS = {"model": "transformer", **TWO}
MESHES = (
    {**WORDS, "data_parallel": True, "zero": 3, "buckets": "late", "micro_batches": 2,
     "rows": 16},
    {**WORDS, "data_parallel": True, "buckets": "together", "micro_batches": 2, "debug": True},
    {**TWO, "model": "stack", "data_parallel": True, "zero": 3, "buckets": "late",
     "recomputed": True},
    {**WORDS, "turns": 2, "micro_batches": 2},
    {**TWO, "model": "decayed", "micro_batches": 2, "optimizer": "slow sgd", "evaluated": [8, 16]},
    {**TWO, "model": "convnet", "micro_batches": 2, "optimizer": "slow sgd",
     "batch_norm": "micro_batch"},
)  # fmt: skip
MORE_MESHES = (
    {**WORDS, "data_parallel": True, "buckets": "late"},
    {**WORDS, "zero": "mixed", "buckets": "single"},
    {**WORDS, "turns": 2, "micro_batches": 2, "debug": True},
)  # fmt: skip
STAGES = (
    case("perceptron", 2, 1, 2, "eager-1f1b", debug=True),
    case("perceptron", 1, 2, 2, "gpipe", 2, overlap=False),
    case("convnet", 2, 1, 2, "zb-h1", micro_batches=1, steps=2),
    case("transformer", 2, 1, 2, "1f1b", 4, delay=1),
    case("transformer", 2, 1, 2, "interleaved-1f1b", 2, chunks=2),
    case("stack", 2, 1, 2, "zb-h1", 2, recomputed=True),
)


@pytest.mark.parametrize(
    ("worker", "cases", "told"),
    [
        ("train", MESHES, "equal: "),
        pytest.param("train", MORE_MESHES, "equal: ", marks=pytest.mark.full),
        pytest.param("pipeline", STAGES, "stages=", marks=pytest.mark.full),
    ],
)
def test_as_on_one_device(launch, worker, cases, told):
    out = launch(WORKERS / f"{worker}.py", 2, json.dumps(cases))
    assert out.count(told) == len(cases), out
