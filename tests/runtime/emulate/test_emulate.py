"""Emulated compute: the same collectives in the same order, and waits as long as the model says."""

import json
import time

import oneflow as flow
import pytest

from autoddl.cluster.spec import Device
from autoddl.cost.operators import at_rate
from autoddl.runtime.emulate.clock import Clock
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
    clock.wait_for(clock.after_collective(flow.zeros(1)))
    assert clock.free_at <= time.perf_counter() - clock.late


class Slow(OneFlow):
    """A back end whose only tensor is there after so many seconds."""

    def __init__(self, seconds):
        super().__init__("cpu")
        self.there_at = time.perf_counter() + seconds

    def wait(self, x=None):
        time.sleep(max(0.0, self.there_at - time.perf_counter()))


@pytest.mark.parametrize("compute_s", [0.0, 0.05, 0.3])
def test_computation_goes_on_beside_a_collective_and_waits_where_it_needs_it(compute_s):
    clock = Clock(Slow(0.15))
    clock.start()
    began = clock.free_at
    clock.before_collective()
    sent = clock.after_collective("moved")
    clock.compute(compute_s)
    assert time.perf_counter() - began < 0.1, "nobody has waited yet"
    clock.wait_for(sent)
    assert clock.free_at - began == pytest.approx(max(compute_s, 0.15), abs=0.05)
    assert clock.stalled_s == pytest.approx(max(0.0, 0.15 - compute_s), abs=0.05)
    clock.finish()
    assert time.perf_counter() - began >= max(compute_s, 0.15)


def test_what_the_emulation_adds_is_taken_off_unless_the_collective_had_to_queue():
    clock = Clock(Slow(0.15))
    clock.start()
    began = clock.free_at
    clock.before_collective()
    first = clock.after_collective("moved", 0.05)
    clock.before_collective()
    second = clock.after_collective("moved", 0.05)
    assert first.end() - began == pytest.approx(0.10, abs=0.03)
    assert second.end() - began == pytest.approx(0.15, abs=0.03)
    clock.before_collective()
    third = clock.after_collective("moved", 10.0)  # never more than the collective took
    assert third.end() >= second.end()


def test_a_rate_must_be_positive():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        at_rate(Device("cpu", 1, {"float32": 1.0}, 1.0), 0)
