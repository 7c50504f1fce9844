"""Emulated compute: the same collectives in the same order, and waits as long as the model says."""

import json
import time

import pytest

from autoddl.cluster.spec import Device
from autoddl.cost.operators import at_rate
from autoddl.runtime.emulate.emulate import Clock
from autoddl.runtime.oneflow.backend import OneFlow


@pytest.mark.alone
@pytest.mark.parametrize("model", ["transformer", pytest.param("convnet", marks=pytest.mark.full)])
def test_traffic_is_real_and_waits_are_right(launch, model):
    out = launch("emulate", 4, model, "3e5")
    found = [json.loads(line.partition("] ")[2]) for line in out.splitlines() if "{" in line]
    assert len(found) == 1
    for each in found:
        assert each["equal"] and each["collectives"] > 5, each
        assert each["compute_s"] > 1, "the waits stand out"
        assert each["seconds"] > 0.99 * each["compute_s"], each
        # communication comes on top; on a busy machine a collective of pairs takes up to 50 ms
        limit = 1.05 * each["compute_s"] + 0.05 * each["collectives"] + 1
        assert each["seconds"] < limit, each


@pytest.mark.alone
def test_the_clock_waits_for_what_is_computed_and_not_for_what_is_late():
    clock = Clock(OneFlow("cpu"))
    started = time.perf_counter()
    clock.start()
    for _ in range(100):
        clock.compute(0.001)
    time.sleep(0.05)  # the host is busy meanwhile
    clock.before_collective()
    passed = time.perf_counter() - started
    assert passed >= 0.1
    assert clock.late == pytest.approx(passed - 0.1, abs=2e-3)
    clock.after_collective()
    assert clock.free_at <= time.perf_counter() - clock.late


def test_what_the_emulation_adds_is_taken_off_the_collective_and_the_next_wait():
    clock = Clock(OneFlow("cpu"))
    clock.start()
    began = time.perf_counter()
    clock.before_collective()
    time.sleep(0.03)
    clock.after_collective(0.02)
    found = clock.communicated_s
    assert 0.01 <= found <= time.perf_counter() - began - 0.02
    assert clock.free_at <= time.perf_counter() - 0.02
    clock.before_collective()
    clock.after_collective(10.0)  # never more than the collective took
    assert clock.communicated_s == found


def test_a_rate_must_be_positive():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        at_rate(Device("cpu", 1, {"float32": 1.0}, 1.0), 0)
