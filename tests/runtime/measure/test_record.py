"""The raw record: what is read, what is refused; the machine file from it, always the same."""

import dataclasses
import json
from pathlib import Path

import pytest

from autoddl.cluster.spec import Cluster
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.measure.measured import Limits, estimate, is_over, stop, why_not
from autoddl.runtime.measure.record import (
    BesideTimes,
    DeviceTimes,
    Machine,
    Record,
    Timing,
    record_path,
)
from autoddl.runtime.measure.schedule import Point, Shape
from autoddl.tools.calibration.calibrate import CalibrateJob, refit
from autoddl.tools.calibration.machine import fit_record, machine_of
from tests.graphs import mlp
from tests.runtime.measure.synthetic import medians

HERE = Machine(("a", "b"), "a processor", 4)


def timing(seconds: float) -> Timing:
    made = Timing(2, [seconds] * 6)
    made.finish(0.95)
    return made


def whole() -> Record:
    device = DeviceTimes(
        "cpu", {"float32": [(1e6, 1e-3), (1e9, 5e-2)]}, [(1e6, 1e-4), (1e8, 2e-2)], 1e-5, 10**9
    )
    timings = {p: timing(s) for p, s in medians(2, 2, outliers=0.0).items()}
    return Record(
        "two",
        "2026-01-02T03:04:05+00:00",
        HERE,
        2,
        2,
        0.95,
        timings,
        device,
        command="autoddl calibrate --output two.json",
        software="autoddl 1, oneflow 2",
    )


def test_a_record_is_read_as_written(tmp_path):
    record = whole()
    record.timings[Point("send", Shape(2, 1, 1), 12)] = Timing(3, [1e-3, 2e-3])
    record.skipped["all_gather"] = "too large"
    record.operators["relu"] = [(64.0, 1e-5, 0.0), (128.0, 2e-5, 1e-6)]
    record.beside["inter"] = BesideTimes(0.3, 0.25, 0.4, 0.35)
    record.save(tmp_path / "r.json")
    again = Record.load(tmp_path / "r.json")
    assert again.dumps() == record.dumps()
    assert again.timings[Point("send", Shape(2, 1, 1), 12)].samples == [1e-3, 2e-3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "reads version 1"),
        (lambda text: text.replace('"median_s"', '"median"', 1), "unknown field"),
        (
            lambda text: text.replace('"kind": "send"', '"kind": "sent"', 1),
            r"collectives\[\d+\].kind' must be .*, got 'sent'",
        ),
        (lambda text: text.replace('"repeats": 6', '"repeats": 0', 1), "greater than 0"),
        (lambda text: "[]", "must be an object"),
    ],
)
def test_a_corrupt_record_is_refused_with_its_name_and_the_mend(tmp_path, change, message):
    path = tmp_path / "r.json"
    path.write_text(change(whole().dumps()))
    with pytest.raises(ValueError, match=message) as error:
        Record.load(path)
    assert str(path) in str(error.value) and "remove it to measure anew" in str(error.value)


def test_a_record_of_another_machine_or_shape_is_not_continued():
    record = whole()
    record.check_same(HERE, 2, 2)
    with pytest.raises(ValueError, match="of 2 x 2 devices, these are 4 x 1"):
        record.check_same(HERE, 4, 1)
    with pytest.raises(ValueError, match=r"the record is of a, b .*, this is a, c"):
        record.check_same(dataclasses.replace(HERE, hosts=("a", "c")), 2, 2)


def test_a_refit_gives_the_same_bytes(tmp_path, capsys):
    job = CalibrateJob(output=str(tmp_path / "two.json"))
    whole().save(record_path(job.output))
    refit(job)
    first = (tmp_path / "two.json").read_bytes()
    (tmp_path / "two.json").unlink()
    refit(job)
    assert (tmp_path / "two.json").read_bytes() == first
    assert "R2 of the logarithms" in capsys.readouterr().out
    cluster = Cluster.load(tmp_path / "two.json")
    assert cluster.calibration is not None and cluster.calibration.r2 > 0.9
    assert "2026-01-02" in cluster.sources["inter.alpha_s"]
    assert cluster.device.curve_for("float32")[0][0] == 1e6


def test_a_refit_takes_what_an_interrupted_calibration_has(tmp_path):
    job = CalibrateJob(output=str(tmp_path / "two.json"))
    record = whole()
    record.timings = {p: Timing(t.calls, [t.median] * 3) for p, t in record.timings.items()}
    path = record_path(job.output)
    record.save(path)
    before = path.read_bytes()
    refit(job)
    cluster = Cluster.load(tmp_path / "two.json")
    assert cluster.calibration is not None
    assert cluster.calibration.samples == 3 * len(record.timings)
    assert path.read_bytes() == before  # which can be gone on with


def test_a_refit_without_a_record_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"x.measurements.json: no such file; run autoddl cali"):
        refit(CalibrateJob(output=str(tmp_path / "x.json")))


def test_without_a_device_the_machine_file_needs_one_given():
    record = whole()
    record.device = None
    fit = fit_record(record)
    with pytest.raises(ValueError, match="--device-from"):
        machine_of(record, fit)
    given = machine_of(whole(), fit).device
    made = machine_of(record, fit, given)
    assert "--device-from" in made.sources["device.memory_bytes"]
    assert Cluster.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_hosts_of_several_kinds_are_groups_with_the_devices_of_their_own_files(tmp_path):
    """Each kind calibrated alone, then all together; planned with, the fast hosts get more."""
    alone = dataclasses.replace(machine_of(whole(), fit_record(whole())), nodes=1)
    slow = dataclasses.replace(alone.device, flops_per_s={"float32": 1e9}, efficiency={})
    kinds = {"fast": alone.device, "slow": slow}
    for name, device in kinds.items():
        own = dataclasses.replace(alone, name=name, device=device)
        own.save(tmp_path / f"{name}.json")
    files = tuple(str(tmp_path / f"{name}.json") for name in kinds)
    record = whole()
    record.device = None
    job = CalibrateJob(output=str(tmp_path / "two.json"), device_from=files)
    record.save(record_path(job.output))
    refit(job)
    cluster = Cluster.load(job.output)
    assert [(g.name, g.nodes, g.device) for g in cluster.groups] == [
        (name, 1, device) for name, device in kinds.items()
    ]
    assert all(group.intra == alone.intra for group in cluster.groups)
    assert "device.launch_s" in cluster.groups[1].sources
    plan = find_plan(mlp(64, (256, 1024, 256)), cluster, PlanOptions(baselines=False))
    assert plan.stage.shares[0] > plan.stage.shares[-1]
    assert job.words()[-4:] == ["--device-from", files[0], "--device-from", files[1]]
    with pytest.raises(ValueError, match=r"have 1 \+ 1 \+ 1 hosts, this machine 2"):
        refit(dataclasses.replace(job, device_from=(*files, files[0])))
    with pytest.raises(ValueError, match="hosts of one kind with 2 devices each"):
        refit(dataclasses.replace(job, device_from=(files[0], job.output)))
    with pytest.raises(ValueError, match="where each kind is calibrated by itself"):
        dataclasses.replace(job, model="gpt_small")


def test_a_machine_of_one_host_says_that_nothing_was_measured_between_hosts():
    timings = {p: timing(s) for p, s in medians(1, 4).items()}
    record = dataclasses.replace(whole(), nodes=1, gpus_per_node=4, timings=timings)
    made = machine_of(record, fit_record(record))
    assert made.inter == made.intra
    assert "not measured" in made.sources["inter.alpha_s"]
    assert made.calibration is not None
    assert {r.nodes for r in made.calibration.ranges} == {1}


def test_limits_end_a_point():
    steady, wild = [1.0] * 6, [1.0, 9.0] * 3
    assert Limits().is_done(steady) and not Limits().is_done(wild)
    assert Limits().is_done(wild * 9)
    assert not Limits(repeats=1000).is_done(steady * 100)
    assert Limits(repeats=1000).next_count(950) == 50


def test_what_takes_too_long_is_left_out_and_the_rest_kept_when_time_is_over():
    shape = Shape(2, 1, 1)
    small, large = (Point("all_gather", shape, n) for n in (1 << 20, 1 << 24))
    record = dataclasses.replace(whole(), timings={small: Timing(1, [0.5] * 6)})
    assert estimate(record, large) == pytest.approx(8.0)
    assert "more than 2 s" in why_not(record, large, Limits(), 1 << 40)
    assert "memory" in why_not(record, large, Limits(), 1 << 24)
    stop(record, [small, large], Limits(call_s=9.0), 1 << 40)
    assert is_over(record, small) and record.timings[small].median == 0.5
    assert "the time of 180 s was over" in record.skipped[str(large)]
    stop(record, [small], Limits(), 1 << 40)
    assert record.timings[small].repeats == 6 and str(small) not in record.skipped


def test_the_machine_file_says_how_well_times_are_known_and_what_was_left_out():
    record = whole()
    first, *_ = record.timings
    record.timings[first] = Timing(1, [0.9, 1.0, 1.1])
    stop(record, list(record.timings), Limits(), 1 << 40)
    record.skipped |= {"all_gather of much": Limits().time_is_over, "send of much": "too slow"}
    made = machine_of(record, fit_record(record))
    assert made.calibration is not None
    known, few, time_is_over, slow = made.calibration.notes
    assert known.endswith("known to 0% (half of them), to 0% (nine in ten)")
    assert few == "points of fewer than 6 samples, whose medians are rough: 1"
    assert time_is_over.startswith("left out 1 such as all_gather of much: the time of 180 s was")
    assert slow == "left out 1 such as send of much: too slow"
    assert Cluster.from_json(made.to_json()) == made


def test_the_shipped_measurement_gives_the_shipped_machine():
    folder = Path(__file__).parents[3] / "calibration"
    shipped = Cluster.load("two_cores")
    record = Record.load(folder / "two_cores.measurements.json")
    made = machine_of(record, fit_record(record))
    assert made.calibration is not None and made.calibration.warnings == ()
    assert made.intra.beta_s_per_byte == pytest.approx(shipped.intra.beta_s_per_byte, rel=0.01)
    assert made.intra.alpha_s == pytest.approx(shipped.intra.alpha_s, rel=0.01)
    assert made.device == dataclasses.replace(
        shipped.device, shuffle_s_per_byte=made.device.shuffle_s_per_byte
    )
    assert made.sources == shipped.sources


def test_operators_of_a_record_come_into_the_machine_file():
    record = whole()
    fit = fit_record(record)
    assert machine_of(record, fit).device.operators == {}
    # the second is an outlier: more work cannot take less time
    record.operators["relu"] = [(64.0, 3e-5, 0.0), (128.0, 1e-5, 0.0), (256.0, 8e-5, 1e-5)]
    machine = machine_of(record, fit)
    points = machine.device.operators["relu"].points
    assert points == ((64.0, 2e-5, 0.0), (128.0, 2e-5, 0.0), (256.0, 8e-5, 1e-5))
    assert "measured" in machine.sources["device.operators"]
    assert Cluster.from_json(machine.to_json()) == machine


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0)),  # each as if it were alone
        ((1.0, 1.0, 0.9, 1.1), (0.0, 1 / 8)),  # 0.2 s were left of the collective after 0.9 s
        ((1.0, 1.0, 1.5, 1.75), (0.5, 1.0)),
        ((1.0, 1.0, 1.75, 1.5), (1.0, 0.5)),
        ((1.0, 1.0, 2.0, 1.0), (999.0, 0.0)),  # one thread for everything: one after the other
    ],
)
def test_slowdowns_follow_from_when_each_ends(times, wanted):
    assert BesideTimes(*times).slowdowns == pytest.approx(wanted)


def test_slowdowns_stand_in_the_machine_file_with_their_source():
    record = whole()
    record.beside["inter"] = BesideTimes(1.0, 1.0, 1.5, 1.75)
    machine = machine_of(record, fit_record(record))
    assert machine.slowest_link.computation_slowdown_ratio == 0.5
    assert machine.inter.collective_slowdown_ratio == 1.0
    assert machine.intra == fit_record(record).intra
    assert "measured" in machine.sources["inter.collective_slowdown_ratio"]
    assert Cluster.from_json(machine.to_json()) == machine
