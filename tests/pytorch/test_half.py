"""Plans in 16 bits learn what one process learns under torch's autocast."""

import json
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "half.py"
FULL = pytest.mark.full
APART = 0.01  # of a loss
BATCHES = 10  # that come again and again


@pytest.mark.parametrize(
    ("precision", "steps", "mesh", "scheme", "models"),
    [
        ("bfloat16", 20, (1, 2), "searched", ("llama",)),
        pytest.param("bfloat16", 200, (2, 2), "B-S1", ("gpt", "resnet"), marks=FULL),
        pytest.param("bfloat16", 200, (2, 2), "random:1", ("llama", "mlp"), marks=FULL),
        pytest.param("float16", 200, (2, 2), "random:1", ("gpt", "resnet"), marks=FULL),
        pytest.param("float16", 200, (2, 2), "data_parallel", ("llama", "mlp"), marks=FULL),
    ],
)
def test_losses_follow_autocast(torch_jobs, precision, steps, mesh, scheme, models):
    words = (precision, steps, *mesh, scheme, *models)
    ranks = mesh[0] * mesh[1]
    status, out = torch_jobs.run(WORKER, ranks, *map(str, words), timeout=280, prefix=False)
    assert status == 0, out
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(found) == len(models)
    for model, result in zip(models, found, strict=True):
        pairs = list(zip(result["losses"], result["expected"], strict=True))
        assert all(a == pytest.approx(b, rel=APART) for a, b in pairs), (model, pairs)
        assert result["losses"][-BATCHES] < 0.99 * result["losses"][0] and result["is_wide"]
