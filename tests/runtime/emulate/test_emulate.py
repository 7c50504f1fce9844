"""Emulated compute: the same collectives in the same order, and waits as long as the model says."""

import json
import time

import pytest

from autoddl.cluster.spec import Device
from autoddl.cost.operators import at_rate
from autoddl.runtime.emulate.clock import Clock
from autoddl.runtime.emulate.overhead import Overhead


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


FREE = Overhead(0.0, 0.0)


def sleeping(seconds):
    return lambda: time.sleep(seconds)


@pytest.mark.alone
@pytest.mark.parametrize("compute_s", [0.0, 0.05, 0.3])
def test_computation_goes_on_beside_a_collective_and_waits_where_it_needs_it(compute_s):
    clock = Clock()
    clock.start()
    began = clock.free_at
    sent = clock.send(sleeping(0.15), FREE)
    clock.free_at += compute_s
    assert time.perf_counter() - began < 0.1, "nobody has waited yet"
    clock.wait_for(sent)
    assert clock.free_at - began == pytest.approx(max(compute_s, 0.15), abs=0.05)
    assert clock.stalled_s == pytest.approx(max(0.0, 0.15 - compute_s), abs=0.05)
    clock.finish()
    assert time.perf_counter() - began >= max(compute_s, 0.15) and not clock.is_running


@pytest.mark.alone
def test_a_collective_starts_when_its_operator_ends_whatever_the_host_does_meanwhile():
    clock, starts = Clock(), []
    clock.start()
    began = clock.free_at
    clock.compute(0.1)
    clock.send(lambda: starts.append(time.perf_counter()), FREE)
    time.sleep(0.02)  # the host is busy
    clock.compute(0.1)
    assert not starts
    clock.finish()
    assert 0.1 <= starts[0] - began < 0.19
    assert clock.free_at - began == pytest.approx(0.2) and time.perf_counter() - began >= 0.2


@pytest.mark.alone
def test_lateness_and_what_the_emulation_adds_are_no_time_of_a_collective():
    clock = Clock()

    def seconds(run, overhead):
        """Of a collective that computation waits for."""
        asked = clock.free_at
        clock.wait_for(clock.send(run, overhead))
        return clock.free_at - asked

    clock.start()
    clock.compute(0.1)
    added = Overhead(slept_s=0.3, waited_s=0.2)
    assert seconds(sleeping(0.4), added) == pytest.approx(0.1, abs=0.09)
    assert seconds(sleeping(0.4), added) == pytest.approx(0.2, abs=0.09)
    time.sleep(0.5)  # the rank is stopped for a while, and then asks for one that is due
    assert seconds(sleeping(0.05), FREE) == pytest.approx(0.05, abs=0.09)
    assert seconds(sleeping(0.01), Overhead(10.0, 10.0)) == 0


def test_a_rate_must_be_positive():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        at_rate(Device("cpu", 1, {"float32": 1.0}, 1.0), 0)
