"""Machine files: what is read, what is refused, and that a good file survives."""

import copy
import json
from pathlib import Path

import pytest

from autoddl.cluster import Cluster, Device, Link
from autoddl.sbp.mesh import SubMesh


def whole() -> dict:
    return {
        "version": 1,
        "name": "box",
        "nodes": 2,
        "gpus_per_node": 4,
        "device": {
            "kind": "cuda",
            "memory_bytes": 16e9,
            "flops_per_s": {"float32": 1e12, "float16": 4e12},
            "memory_bandwidth_bytes_per_s": 5e11,
            "launch_s": 1e-5,
        },
        "intra": {"alpha_s": 1e-6, "beta_s_per_byte": 1e-11},
        "inter": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-10},
        "sources": {"inter.alpha_s": "measured"},
    }


def changed(path: str, value) -> dict:
    """The whole file with the field at dotted `path` set, or removed if `value` is KeyError."""
    data = copy.deepcopy(whole())
    *parents, name = path.split(".")
    part = data
    for parent in parents:
        part = part[parent]
    if value is KeyError:
        del part[name]
    else:
        part[name] = value
    return data


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        Cluster.load(path)
    assert str(path) in str(error.value)
    return str(error.value)


FIELDS = [
    "name", "nodes", "gpus_per_node", "device", "device.kind", "device.memory_bytes",
    "device.flops_per_s", "device.flops_per_s.float32", "device.memory_bandwidth_bytes_per_s",
    "intra", "intra.alpha_s", "intra.beta_s_per_byte", "inter", "inter.alpha_s",
    "inter.beta_s_per_byte",
]  # fmt: skip
POSITIVE = [f for f in FIELDS if f in ("nodes", "gpus_per_node") or f.count("_")]
POSITIVE = [f for f in POSITIVE if f != "device.flops_per_s"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named(tmp_path, field):
    message = refusal(tmp_path, json.dumps(changed(field, KeyError)))
    *parents, name = field.split(".")
    inside = f"'{'.'.join(parents)}': '{name}'"  # of rates, of which one is needed
    assert f"'{field}' is missing" in message or f"{inside} is missing" in message


@pytest.mark.parametrize("field", POSITIVE)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "7", None, True, [1]])
def test_a_number_that_makes_no_sense_is_named(tmp_path, field, value):
    assert f"'{field}' must be" in refusal(tmp_path, json.dumps(changed(field, value)))


@pytest.mark.parametrize("field", [f for f in POSITIVE if not f.endswith("alpha_s")])
def test_zero_is_refused_where_it_would_divide(tmp_path, field):
    assert f"'{field}' must be greater than 0" in refusal(tmp_path, json.dumps(changed(field, 0)))


@pytest.mark.parametrize("field", ["nodes", "gpus_per_node", "device.memory_bytes"])
def test_counts_are_whole(tmp_path, field):
    assert f"'{field}' must be a whole number" in refusal(tmp_path, json.dumps(changed(field, 1.5)))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("gpu_per_node", 4, "unknown field 'gpu_per_node'; did you mean 'gpus_per_node'?"),
        ("device.memory", 1, "unknown field 'device.memory'; did you mean 'memory_bytes'?"),
        ("inter.beta", 1, "unknown field 'inter.beta'; did you mean 'beta_s_per_byte'?"),
        ("intra.xyz", 1, "unknown field 'intra.xyz'; known: alpha_s, beta_s_per_byte"),
        ("device.flops_per_s.float23", 1, "did you mean 'float32'?"),
        ("sources.inter_alpha_s", "x", "did you mean 'inter.alpha_s'?"),
        ("sources.nodes", 3, "'sources.nodes' must be a string, got 3"),
        ("sources", [], "'sources' must be an object"),
        ("device", 3, "'device' must be an object, got 3"),
        ("device.kind", "tpu", "'device.kind' must be 'cpu' or 'cuda', got 'tpu'"),
        ("name", "", "'name' must not be empty"),
        ("version", 2, "'version' is 2; this autoddl reads version 1"),
        ("version", KeyError, "'version' is 'missing'"),
    ],
)
def test_other_mistakes_are_explained(tmp_path, field, value, expected):
    assert expected in refusal(tmp_path, json.dumps(changed(field, value)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be an object, got []"),
        ('{"version": 1, "nodes": 1, "nodes": 2}', "'nodes' is given twice"),
    ],
)
def test_what_is_no_object_is_explained(tmp_path, text, expected):
    assert expected in refusal(tmp_path, text)


def test_binary_files_and_missing_files(tmp_path):
    path = tmp_path / "machine.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        Cluster.load(path)
    with pytest.raises(ValueError, match=r"nowhere\.json: no such file"):
        Cluster.load(tmp_path / "nowhere.json")


def test_a_cluster_built_by_hand_is_checked_too():
    device = Device("cpu", 1, {"float32": 1.0}, 1.0)
    with pytest.raises(
        ValueError, match="Link: field 'beta_s_per_byte' must be greater than 0, got -1"
    ):
        Cluster("box", 1, 1, device, Link(0, 1), Link(0, -1))


def test_what_is_saved_is_loaded(tmp_path):
    cluster = Cluster.from_json(whole())
    cluster.save(tmp_path / "a.json")
    assert Cluster.load(tmp_path / "a.json") == cluster
    assert cluster.device.memory_bytes == 16_000_000_000


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    cluster = Cluster.from_json(whole())
    cluster.save(path)
    before = path.read_text()

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        cluster.with_shape(nodes=7).save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_with_shape_changes_the_size_and_says_so():
    cluster = Cluster.from_json(whole())
    small = cluster.with_shape(nodes=1, gpus_per_node=2)
    assert (small.nodes, small.gpus_per_node, small.num_devices) == (1, 2, 2)
    assert small.mesh.extents == (2,)
    assert small.device == cluster.device
    assert small.sources == {
        "inter.alpha_s": "measured",
        "nodes": "chosen by the caller (with_shape)",
        "gpus_per_node": "chosen by the caller (with_shape)",
    }
    assert cluster.with_shape() == cluster
    assert cluster.with_shape(nodes=2) == cluster
    with pytest.raises(ValueError, match="'nodes' must be greater than 0, got 0"):
        cluster.with_shape(nodes=0)


def test_link_times():
    link = Link(alpha_s=2e-6, beta_s_per_byte=1e-9)
    assert link.seconds(3, 1000) == pytest.approx(7e-6)
    assert link.bandwidth_bytes_per_s == pytest.approx(1e9)


def test_dtypes_without_a_rate_run_like_float32():
    device = Cluster.from_json(whole()).device
    assert device.flops_for("float16") == 4e12
    assert device.flops_for("bfloat16") == 1e12


@pytest.mark.parametrize("name", ["piz_daint", "gcp_a100", "laptop", "hap_4"])
def test_every_number_of_the_shipped_machines_has_a_source(name):
    cluster = Cluster.load(name)
    numbers = {"nodes", "gpus_per_node"}
    for part in ("device", "intra", "inter"):
        numbers |= {f"{part}.{field}" for field in cluster.to_json()[part]}
    numbers |= {f"device.flops_per_s.{dtype}" for dtype in cluster.device.flops_per_s}
    numbers -= {"device.kind", "device.flops_per_s"}
    assert set(cluster.sources) == numbers
    assert all(cluster.sources.values())


def test_the_shipped_machines_are_the_papers_platforms():
    daint = Cluster.load("piz_daint")
    google = Cluster.load("gcp_a100")
    laptop = Cluster.load("laptop")
    assert (daint.gpus_per_node, daint.device.memory_bytes) == (1, 16_000_000_000)
    assert (google.nodes, google.gpus_per_node) == (2, 16)
    assert google.device.memory_bytes == 40_000_000_000
    assert (laptop.nodes, laptop.gpus_per_node, laptop.device.kind) == (2, 2, "cpu")
    pair = Cluster.load("hap_4")
    fast, slow = (kind.device.flops_for("float32") for kind in pair.kinds)
    assert (pair.num_devices, round(fast / slow, 3)) == (4, 2.658)
    for group in pair.to_json()["groups"][1:]:
        numbers = {f"{part}.{field}" for part in ("device", "intra") for field in group[part]}
        numbers = numbers - {"device.kind", "device.flops_per_s"} | {"device.flops_per_s.float32"}
        assert set(group["sources"]) == numbers


def test_a_part_has_the_groups_of_its_hosts():
    """P100 hosts come after V100 hosts; a stage of both has those where they meet."""
    cluster = Cluster.load("hap_64")
    v100, p100 = cluster.groups
    both = cluster.part(SubMesh(v100.nodes - 1, 3, 0, 8))
    assert [(group.name, group.nodes) for group in both.groups] == [(v100.name, 1), (p100.name, 2)]
    assert both.memory_bytes == min(cluster.device_of(n).memory_bytes for n in (0, 1))
    assert [kind.part for kind in both.with_shares((2, 1, 1)).kinds] == [1.0, 0.5]
    assert not cluster.part(SubMesh(v100.nodes, 2, 0, 8)).groups
    assert cluster.part(SubMesh(0, cluster.nodes, 0, 8)) == cluster
