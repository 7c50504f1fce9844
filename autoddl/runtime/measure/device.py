"""Times the computation of one device while all ranks compute, as in training.

These are matmuls of growing size per dtype, copies of a large tensor, and the start of a tiny
operator.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...graph.placed import PlannedOp
from ...sbp.layout import TensorSpec
from ...sbp.placement import NdSbp
from ...sbp.signature import OpSpec
from ..backend import Tensor
from ..comm.groups import Groups
from ..kernel import ByInput, Context, Explicit, RunState
from .record import DeviceTimes
from .stopwatch import Stopwatch

DTYPES = ("float32", "float64")  # and the others in which plans may compute
# Doubling sizes, from where the start of the operator dominates to where the rate is constant; one
# that would take too long ends the measurement.
MATMUL_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
COPY_BYTES = (1 << 20, 1 << 24, 1 << 26)  # 1, 16 and 64 MB: inside and outside of most caches
SMALL_OPERATORS = 500  # a sample of one would mostly time the barrier around it


def measure_device(
    watch: Stopwatch,
    groups: Groups,
    most_seconds: float,
    samples: int = 7,
    tell: Callable[[str], None] = lambda what: None,
) -> DeviceTimes:
    """Measure the device; matmuls that would take more than `most_seconds` are left out."""
    backend, facts = groups.backend, groups.backend.facts
    matmul: dict[str, list[tuple[float, float]]] = {}
    for dtype in dict.fromkeys((*DTYPES, *facts.precisions)):
        points: list[tuple[float, float]] = []
        for size in MATMUL_SIZES:
            if points and points[-1][1] * (size**3 * 2 / points[-1][0]) > most_seconds:
                break
            tell(f"matmul {size}, {dtype}")
            calls = max(1, min(200, int(2e7 / (2.0 * size**3)) * 10))
            seconds = _seconds(watch, square_product(groups, dtype, size), calls, samples)
            points.append((2.0 * size**3, seconds))
        matmul[dtype] = points
    copies: list[tuple[float, float]] = []
    for size in COPY_BYTES:
        tell(f"copy of {size} bytes")
        x = backend.from_numpy(np.ones(size // 4, np.float32))
        copies.append((2.0 * size, _seconds(watch, lambda x=x: x + 1.0, 4, samples)))
    tell("start of an operator")
    tiny = backend.from_numpy(np.ones(8, np.float32))
    share = memory_bytes(facts.device, groups.mesh.gpus_per_node)
    return DeviceTimes(
        kind=facts.device,
        matmul=matmul,
        copy=copies,
        launch_s=_seconds(watch, lambda: tiny + 1.0, SMALL_OPERATORS, samples),
        memory_bytes=int(watch.gather(np.array([float(share)])).min()),
    )


def square_product(groups: Groups, dtype: str, size: int) -> Callable[[], Tensor]:
    """A product of two square matrices, by the kernel that the executor calls."""
    square = TensorSpec((size, size), dtype)
    attrs = {"transpose_a": False, "transpose_b": False, "alpha": 1.0}
    spec = OpSpec("matmul", attrs, (square, square), (square,))
    whole = NdSbp.broadcast(groups.mesh.num_axes)
    planned = PlannedOp((whole, whole), (whole,), (), ())
    context = Context("matmul", spec, planned, groups.mesh, groups.rank, RunState(0))
    kernel, backend = groups.backend.kernels.operators["matmul"], groups.backend
    a = backend.cast(backend.from_numpy(np.ones(square.shape)), dtype)

    def product() -> Tensor:
        made = kernel(context, [a, a], attrs)
        return (made.outputs if isinstance(made, Explicit | ByInput) else made)[0]

    return product


def _seconds(watch: Stopwatch, call: Callable[[], object], calls: int, samples: int) -> float:
    watch.warm_up(call)
    return watch.median(call, calls, samples)


def memory_bytes(kind: str, gpus_per_node: int) -> int:
    """Bytes that one process may use: the free memory of its GPU, or its share of the host's."""
    if kind == "cuda":
        asked = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
        return min(int(line) for line in found.stdout.split()) << 20
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // gpus_per_node
    raise ValueError("/proc/meminfo has no MemAvailable: give the device with --device-from")
