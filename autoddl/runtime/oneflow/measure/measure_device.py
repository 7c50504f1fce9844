"""Times the computation of one device while all ranks compute, as in training.

These are matmuls of growing size per dtype, copies of a large tensor, and the start of a tiny
operator.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import oneflow as flow

from ...measure.record import DeviceTimes
from .timing import Stopwatch

DTYPES = {"cpu": ("float32", "float64"), "cuda": ("float32", "float64", "float16")}
# Doubling sizes, from where the start of the operator dominates to where the rate is constant; one
# that would take too long ends the measurement.
MATMUL_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
COPY_BYTES = (1 << 20, 1 << 24, 1 << 26)  # 1, 16 and 64 MB: inside and outside of most caches
SMALL_OPERATORS = 500  # a sample of one would mostly time the barrier around it


def measure_device(
    watch: Stopwatch,
    kind: str,
    gpus_per_node: int,
    samples: int = 7,
    most_seconds: float = 0.5,
    tell: Callable[[str], None] = lambda what: None,
) -> DeviceTimes:
    """Measure the device; matmuls that would take more than `most_seconds` are left out."""
    assert kind in ("cpu", "cuda")
    matmul: dict[str, list[tuple[float, float]]] = {}
    for dtype in DTYPES[kind]:
        points: list[tuple[float, float]] = []
        for size in MATMUL_SIZES:
            if points and points[-1][1] * (size**3 * 2 / points[-1][0]) > most_seconds:
                break
            tell(f"matmul {size}, {dtype}")
            points.append((2.0 * size**3, _matmul_seconds(watch, kind, dtype, size, samples)))
        matmul[dtype] = points
    copies: list[tuple[float, float]] = []
    for size in COPY_BYTES:
        tell(f"copy of {size} bytes")
        x = flow.ones(size // 4, device=kind)
        copies.append((2.0 * size, _seconds(watch, lambda x=x: x + 1.0, 4, samples)))
    tell("start of an operator")
    tiny = flow.ones(8, device=kind)
    return DeviceTimes(
        kind=kind,
        matmul=matmul,
        copy=copies,
        launch_s=_seconds(watch, lambda: tiny + 1.0, SMALL_OPERATORS, samples),
        memory_bytes=int(watch.gather(np.array([float(memory_bytes(kind, gpus_per_node))])).min()),
    )


def _matmul_seconds(watch: Stopwatch, kind: str, dtype: str, size: int, samples: int) -> float:
    a = flow.ones(size, size, dtype=getattr(flow, dtype), device=kind)
    calls = max(1, min(200, int(2e7 / (2.0 * size**3)) * 10))
    return _seconds(watch, lambda: flow.matmul(a, a), calls, samples)


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
