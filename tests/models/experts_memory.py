"""Prints by how many bytes a step of a layer of 64 experts raises this process's resident memory.

Argument: index or einsum, the form of the layer; 8 sequences of 1,024 tokens, width 32.
"""

import sys
from pathlib import Path

import oneflow as flow
import oneflow.nn.functional as F

from autoddl.runtime.oneflow.models.moe import Experts
from tests.models.einsum_experts import EinsumExperts

WIDTH, EXPERTS = 32, 64


def resident(key: str) -> int:
    """VmRSS: bytes now; VmHWM: at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def step(layer: flow.nn.Module, x: flow.Tensor) -> None:
    y, balance = layer(x)
    loss = F.mse_loss(y, x) + balance.mean()
    loss.backward()
    assert float(loss) > 0  # which also waits


def main(kind: str) -> None:
    layer = {"index": Experts, "einsum": EinsumExperts}[kind](WIDTH, EXPERTS, 2, hidden=WIDTH)
    step(layer, flow.randn(1, 16, WIDTH))  # kernels and gradients are there
    x = flow.randn(8, 1024, WIDTH)
    assert x.numpy().any()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is counted from here
    step(layer, x)
    print(resident("VmHWM") - before)


main(sys.argv[1])
