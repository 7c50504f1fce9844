"""The optional parts of a machine file: efficiency, latencies, how it was measured."""

import copy
import dataclasses
import json

import pytest

from autoddl.cluster.link import Link
from autoddl.cluster.spec import Cluster
from autoddl.cost.collectives import CommModel
from tests.clusters import cluster

LAPTOP = cluster("laptop", 2, 2)
RANGE = {
    "kind": "all_gather", "nodes": 2, "gpus": 1, "groups": 2, "min_bytes": 1024,
    "max_bytes": 65536,
}  # fmt: skip


def whole() -> dict:
    data = copy.deepcopy(LAPTOP.to_json())
    data["device"]["efficiency"] = {"float32": [[1e6, 1e9], [1e9, 1e10]]}
    data["device"]["operators"] = {"relu nx8 float32 -> nx8 float32 {}": [[64, 1e-5, 0.0]]}
    data["device"]["shuffle_s_per_byte"] = 1e-9
    data["intra"] |= {"call_s": 1e-4, "transfer_s": 0.0}
    data["calibration"] = {
        "date": "2026-01-01T00:00:00+00:00",
        "samples": 100,
        "confidence": 0.95,
        "intervals": {"intra.alpha_s": [0, 1e-4], "device.shuffle_s_per_byte": [0, 1e-9]},
        "r2": -0.5,
        "errors": {"all_gather": 0.1},
        "warnings": ["the fit explains only R2 = -0.50 of the measured times"],
        "ranges": [RANGE],
    }
    return data


def test_all_parts_are_read_and_written_again():
    found = Cluster.from_json(whole())
    again = json.loads(json.dumps(found.to_json()))
    assert again == json.loads(json.dumps(whole()))
    assert Cluster.from_json(again) == found
    assert found.intra.transfer_latency_s == 0.0 and found.inter.transfer_latency_s == 2e-4
    assert found.device.curve_for("float32") == ((1e6, 1e9), (1e9, 1e10))
    assert found.device.curve_for("float64") == ()
    assert found.device.curve_for("bfloat16") == found.device.curve_for("float32")


def test_parts_that_say_nothing_are_left_out():
    data = LAPTOP.to_json()
    assert "calibration" not in data and "efficiency" not in data["device"]
    assert set(data["intra"]) == {"alpha_s", "beta_s_per_byte"}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("intra.call_s", -1, "'intra.call_s' must be greater than or equal to 0, got -1"),
        ("intra.transfer_s", "x", "'intra.transfer_s' must be a number"),
        ("device.efficiency", [], "'device.efficiency' must be an object"),
        ("device.efficiency", {"float3": []}, "did you mean 'float32'"),
        ("device.efficiency.float32", [], "must have 1 or more items"),
        ("device.efficiency.float32", [[1e6]], "float32\\[0\\]\\[1\\]' is missing"),
        ("device.efficiency.float32", [[1e6, 0]], "must be greater than 0"),
        ("device.efficiency.float32", [[1e6, 1e9], [1e6, 1e9]], "FLOPs must ascend"),
        ("device.operators", [], "'device.operators' must be an object"),
        ("device.operators.relu", [], "one measured point at least"),
        ("device.operators.relu", [[1, 2]], "'device.operators.relu\\[0\\]\\[2\\]' is missing"),
        ("device.operators.relu", [[1, 0, 0]], "relu\\[0\\]\\[1\\]' must be greater than 0"),
        ("device.operators.relu", [[1, 2, 0], [1, 3, 0]], "'device.operators.relu': work must"),
        ("device.operators.relu", [[1, 2, 3], [2, 2, 1]], "seconds must not fall"),
        ("device.efficiency.float32", [[1e6, 1e9], [2e6, 1e10]], "must not take less time"),
        ("calibration", 3, "'calibration' must be an object"),
        ("calibration.r2", "good", "'calibration.r2' must be a number"),
        ("calibration.samples", 0, "'calibration.samples' must be greater than 0"),
        ("calibration.intervals", {"intra.alpha": [0, 1]}, "did you mean 'intra.alpha_s'"),
        ("calibration.intervals", {"intra.alpha_s": [1, 0]}, "must be a pair \\[low, high\\]"),
        ("calibration.intervals", {"intra.alpha_s": [1]}, "intra.alpha_s\\[1\\]' is missing"),
        (
            "calibration.errors",
            {"send": -1},
            "'calibration.errors.send' must be greater than or equal to 0",
        ),
        ("calibration.ranges", [{**RANGE, "gpus": 0}], "'calibration.ranges\\[0\\].gpus' must be"),
        ("calibration.ranges", [{"kind": "send"}], "nodes' is missing"),
        ("calibration.extra", 1, "unknown field 'calibration.extra'"),
    ],
)
def test_nonsense_is_refused_by_name(path, value, message):
    data = whole()
    *parents, name = path.split(".")
    part = data
    for parent in parents:
        part = part[parent]
    part[name] = value
    with pytest.raises(ValueError, match=message):
        Cluster.from_json(data)


def test_each_number_enters_the_price_once():
    """A call, its messages, its bytes on the link, its own passes over the tensor."""
    link = Link(alpha_s=10.0, beta_s_per_byte=1.0, call_s=1000.0, transfer_s=7.0)
    device = dataclasses.replace(LAPTOP.device, shuffle_s_per_byte=0.01)
    where = dataclasses.replace(LAPTOP, intra=link, device=device).with_shape(1, 4)
    model = CommModel(where)
    whole_host = tuple(range(where.mesh.num_axes))
    assert model.price("all_gather", whole_host) == pytest.approx((1030.0, 0.75 + 0.01))
    assert model.price("reduce_scatter", whole_host) == pytest.approx((1030.0, 0.75 + 0.02))
    assert model.price("all_reduce", whole_host) == pytest.approx((1060.0, 1.5 + 0.02))
    assert model.price("all_to_all", whole_host) == pytest.approx((1030.0, 0.75 + 0.03))
    assert model.group_price("send", 1, 2) == pytest.approx((7.0, 1.0))
    assert link.seconds(3, 100) == pytest.approx(1000 + 30 + 100)
    assert link.transfer_seconds(100) == pytest.approx(107)


def test_sends_of_several_devices_share_the_nic():
    inter = Link(alpha_s=5.0, beta_s_per_byte=2.0)
    model = CommModel(dataclasses.replace(LAPTOP, inter=inter))
    assert model.group_price("send", 2, 1, groups=1) == pytest.approx((5.0, 2.0))
    assert model.group_price("send", 2, 1, groups=2) == pytest.approx((5.0, 4.0))
