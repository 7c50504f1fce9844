"""Plans in 16 bits learn what one process learns under torch's autocast."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoddl.runtime.torch.kernels import KERNELS

WORKER = Path(__file__).parent / "half.py"
FULL = pytest.mark.full
# of a loss. BatchNorm of few rows spreads what is rounded: torch's autocast in one process with the
# rows of its batches in another order is 0.65 to 1.52 % from itself in 200 steps (six seeds)
APART = {"resnet": 0.02}
USUALLY = 0.01
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
        apart = APART.get(model, USUALLY)
        assert all(a == pytest.approx(b, rel=apart) for a, b in pairs), (model, pairs)
        assert result["losses"][-BATCHES] < 0.99 * result["losses"][0] and result["is_wide"]


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_gradients_of_norms_do_not_overflow(kind):
    """They are sums over all rows: at float16's usual loss scale too large for float16."""
    x = torch.tensor([[-1.0, 1.0]]).repeat(64, 1).half().requires_grad_()
    scale = torch.ones(2, requires_grad=True)
    attrs = {"begin_norm_axis": 1, "normalized_shape": (2,), "epsilon": 0.0}
    here: Any = SimpleNamespace(inner=None)
    ran: Any = KERNELS[kind](here, [x, scale], attrs)
    (y,) = ran
    assert y.dtype is torch.float16
    y.backward(2048 * x.detach())
    assert scale.grad is not None and scale.grad.tolist() == [64 * 2048.0] * 2
    assert x.grad is not None and x.grad.isfinite().all()
