"""Seconds of computation of an operator on one device: a roofline of FLOPs and memory bandwidth.

    forward  = max(flops / rate(dtype), bytes moved / bandwidth) + launch
    backward = twice the forward pass for operators that multiply matrices, else once

`forward_seconds` computes the first; `BACKWARD_RATIO` holds the second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Device

BACKWARD_RATIO: Mapping[bool, float] = {True: 2.0, False: 1.0}  # heavy operator -> ratio


def at_rate(device: Device, flops_per_s: float) -> Device:
    """`device`, as if it did so many FLOP/s in any dtype. ValueError unless that is positive."""
    if not flops_per_s > 0:
        raise ValueError(f"the FLOP rate of a device must be positive, got {flops_per_s}")
    return dataclasses.replace(device, flops_per_s={"float32": flops_per_s}, efficiency={})


def forward_seconds(
    device: Device, flops: NDArray[np.float64], moved_bytes: NDArray[np.float64], dtype: str
) -> NDArray[np.float64]:
    """Seconds of one forward pass, elementwise over arrays of strategies."""
    arithmetic = flops / device.flops_for(dtype)
    traffic = moved_bytes / device.memory_bandwidth_bytes_per_s
    return np.maximum(arithmetic, traffic) + device.launch_s
