"""Seconds of computation of an operator on one device: a roofline of FLOPs and memory bandwidth.

    forward  = max(flops / rate(dtype), bytes moved / bandwidth) + launch
    backward = twice the forward pass for operators that multiply matrices, else once

Small matmuls do not reach the rate of large ones. Where the machine file has the device's measured
efficiency, flops / rate of an operator that multiplies matrices is read off it instead: straight
lines between the points (FLOPs, seconds) in logarithms, the rates of the first and the last beyond
them. `forward_seconds` computes the first formula; `BACKWARD_RATIO` holds the second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Curve, Device

BACKWARD_RATIO: Mapping[bool, float] = {True: 2.0, False: 1.0}  # heavy operator -> ratio


def at_rate(device: Device, flops_per_s: float) -> Device:
    """`device`, as if it did so many FLOP/s in any dtype. ValueError unless that is positive."""
    if not flops_per_s > 0:
        raise ValueError(f"the FLOP rate of a device must be positive, got {flops_per_s}")
    rates = {"float32": flops_per_s}
    return dataclasses.replace(device, flops_per_s=rates, efficiency={}, operators={})


def forward_seconds(
    device: Device,
    flops: NDArray[np.float64],
    moved_bytes: NDArray[np.float64],
    dtype: str,
    heavy: bool = False,
) -> NDArray[np.float64]:
    """Seconds of one forward pass, elementwise over arrays of strategies.

    heavy: the operator multiplies matrices
    """
    curve = device.curve_for(dtype) if heavy else ()
    arithmetic = curve_seconds(curve, flops) if curve else flops / device.flops_for(dtype)
    traffic = moved_bytes / device.memory_bandwidth_bytes_per_s
    return np.maximum(arithmetic, traffic) + device.launch_s


def curve_seconds(curve: Curve, flops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of matmuls of so many FLOPs by points (FLOPs, FLOP/s); never less for more FLOPs."""
    at, rate = np.array(curve).T
    inside = np.clip(flops, at[0], at[-1])
    between = np.exp(np.interp(np.log(inside), np.log(at), np.log(at / rate)))
    return between * (flops / inside)
