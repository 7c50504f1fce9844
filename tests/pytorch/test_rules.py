"""The rules hold for torch itself: shards on real processes, forward and backward."""

from pathlib import Path

import pytest

from autoddl.runtime.torch.kernels import KERNELS
from autoddl.sbp.signature import RULES

WORKER = Path(__file__).parents[1] / "runtime" / "workers" / "rules.py"
WITHOUT = {
    "input", "param", "buffer", "loss", "stage_input", "stage_output",  # the executor's own
    "randperm",
    "repeat_interleave",
    "moe_dispatch", "moe_combine", "affine_grid",
}  # fmt: skip


def test_every_rule_has_a_kernel_or_is_known_to_have_none():
    assert RULES.keys() - KERNELS.keys() == WITHOUT
    assert KERNELS.keys() <= RULES.keys()


@pytest.mark.parametrize(
    ("nodes", "gpus", "sample"),
    [pytest.param(*one, marks=pytest.mark.full) for one in ((1, 2, 2), (1, 2, 0), (2, 2, 6))],
)
def test_every_signature_on_real_processes(launch, nodes, gpus, sample):
    out = launch(WORKER, nodes * gpus, str(nodes), str(gpus), str(sample), "torch", timeout=280)
    assert "checked" in out
    print(out.splitlines()[-1])
