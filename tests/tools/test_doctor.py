"""Each finding of the doctor, from made-up machines, and its report on this one."""

from pathlib import Path

import pytest

from autoddl.tools import doctor
from autoddl.tools.doctor import Check

ROOT = Path(__file__).parents[2]
PYPROJECT, CONSTRAINTS = ROOT / "pyproject.toml", ROOT / "constraints.txt"
GOOD = {
    "oneflow": "0.9.0",
    "numpy": "1.26.4",
    "protobuf": "3.20.3",
    "nvidia-cublas-cu11": "11.10.3.66",
    "nvidia-cudnn-cu11": "8.5.0.96",
}


def failing(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.mend for check in checks if check.status == "fail"}


def test_a_good_install_has_nothing_to_mend():
    assert failing(doctor.oneflow_checks(GOOD, True)) == {}


@pytest.mark.parametrize(
    ("name", "version", "failed", "mend"),
    [
        ("numpy", "2.1.0", "numpy<2", "pip install 'numpy<2'"),
        ("protobuf", "4.25.1", "protobuf<4", "pip install 'protobuf<4'"),
        ("protobuf", None, "protobuf<4", "pip install 'protobuf<4'"),
        ("nvidia-cublas-cu11", None, "nvidia-cublas-cu11", "nvidia-cublas-cu11==11.10.3.66"),
        ("nvidia-cudnn-cu11", "9.0", "nvidia-cudnn-cu11", "nvidia-cudnn-cu11==8.5.0.96"),
        ("oneflow", "0.7.0", "oneflow", "pip install oneflow==0.9.0"),
        ("oneflow", None, "oneflow", "pip install ."),
    ],
)
def test_what_spoils_oneflow_is_found(name, version, failed, mend):
    installed = {k: v for k, v in {**GOOD, name: version}.items() if v is not None}
    found = failing(doctor.oneflow_checks(installed, True))
    assert list(found) == [failed]
    assert mend in found[failed]


def test_no_oneflow_is_no_failure_where_there_is_none():
    (check,) = doctor.oneflow_checks({}, False)
    assert check.status == "note"
    assert "Python 3.10" in check.mend


@pytest.mark.parametrize(
    ("version", "system", "machine", "status"),
    [
        ((3, 10), "Linux", "x86_64", "ok"),
        ((3, 10), "Darwin", "arm64", "note"),
        ((3, 12), "Linux", "x86_64", "note"),
        ((3, 9), "Linux", "x86_64", "fail"),
    ],
)
def test_pythons(version, system, machine, status):
    assert doctor.python_check(version, system, machine).status == status


def test_planner_packages():
    assert doctor.planner_check("scipy", {"scipy": "1.15.3"}) == Check("scipy", "ok", "1.15.3")
    assert doctor.planner_check("scipy", {}).status == "fail"


def test_compiled_loops_may_be_missing_but_not_of_another_source():
    def old():
        raise ImportError("compiled from another version of loops.c")

    missing, stale = doctor.loops_check(lambda: None), doctor.loops_check(old)
    assert missing.status == "note" and "C compiler" in missing.mend
    assert stale.status == "fail" and "another version" in stale.found


def test_an_import_that_fails_shows_its_last_line():
    check = doctor.import_check(lambda: (False, "ImportError: libcudnn.so.8"))
    assert (check.status, check.found) == ("fail", "ImportError: libcudnn.so.8")


def test_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable: 2000000 kB\n")
    assert doctor.available_memory_bytes(meminfo) == 2_048_000_000
    assert doctor.available_memory_bytes(tmp_path / "none") is None
    assert doctor.memory_check(2_048_000_000).status == "note"
    assert doctor.memory_check(8_000_000_000) == Check("free memory", "ok", "8.0 GB")


def test_launcher():
    def forbidden() -> int:
        raise OSError("Operation not permitted")

    assert doctor.port_check(lambda: 4000, {}).status == "ok"
    assert doctor.port_check(forbidden, {}).status == "fail"
    left_over = doctor.port_check(lambda: 4000, {"RANK": "0", "WORLD_SIZE": "4"})
    assert "unset RANK WORLD_SIZE" in left_over.mend


def test_what_some_commands_need_is_noted():
    installed = {"matplotlib": "3.10.9", "torch": "2.14.1"}
    there = doctor.optional_checks(installed, lambda name: f"/bin/{name}", True)
    assert {check.status for check in there} == {"ok"}
    missing = doctor.optional_checks({}, lambda name: None, False)
    mends = {check.name: check.mend for check in missing}
    assert {check.status for check in missing} == {"note"}
    assert "compare --plot" in mends["matplotlib"] and "explain --png" in mends["chromium"]
    assert "PyTorch" in mends["torch"]
    assert "box" in mends["iproute2"] and "sudo" in mends["root"]


def test_it_wants_the_versions_that_are_installed_with_the_package():
    wanted = {"oneflow": doctor.ONEFLOW, **doctor.CUDA_LIBRARIES}
    for text in (PYPROJECT.read_text(), CONSTRAINTS.read_text()):
        for name, version in wanted.items():
            assert f"{name}=={version}" in text


def test_this_machine():
    report = doctor.report(doctor.examine()).to_json()
    assert report["ok"] is True, report
    assert {"python", "numpy", "oneflow", "launcher"} <= {c["name"] for c in report["checks"]}
