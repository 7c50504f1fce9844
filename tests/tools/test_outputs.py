"""Each file that a command writes has a place of its own, which is none that it reads."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoddl.cluster.spec import MACHINE_FILE
from autoddl.tools.cli import main
from tests.clusters import cluster
from tests.plans.example import MLP, PLAN

PLANNING = ("graph.json", "--cluster", "machine.json")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("explain", "plan.json", "--html", "x", "--png", "./x"), "--html and --png are both x"),
        (("explain", "plan.json", "--timeline", "x", "--trace", "link"), "are both x"),
        (("explain", "plan.json", "--html", "plan.json"), "which is PLAN of this command"),
        (("export", "plan.json", "-o", "link-to-plan"), "--output would replace plan.json"),
        (("plan", *PLANNING, "-o", "graph.json"), "which is MODEL of this command"),
        (("plan", *PLANNING, "-o", "machine.json"), "which is --cluster of this command"),
        (("trace", "graph.json", "-o", "graph.json"), "which is MODEL of this command"),
        (("compare", *PLANNING, "--plot", "graph.json"), "which is MODEL of this command"),
        (("train", *PLANNING, "--profile", "machine.json"), "--profile would replace machine"),
        (("plan", *PLANNING, "--hints", "hints.json", "-o", "./hints.json"), "which is --hints"),
        (("compare", *PLANNING, "--hints", "hints.json", "--plot", "hints.json"), "is --hints"),
        (("train", *PLANNING, "--hints", "hints.json", "--profile", "hints.json"), "is --hints"),
        (("trace", "hf:config.json:64", "-o", "config.json"), "which is MODEL of this command"),
        (("calibrate", "--output", "x.png"), "--output and --output's plot are both x.png"),
        (
            ("calibrate", "--output", "machine.json", "--device-from", "machine.json"),
            "--output would replace machine.json, which is --device-from",
        ),
        (
            ("calibrate", "--output", "x", "--device-from", "x.measurements.json"),
            "--output's measurements would replace",
        ),
    ],
)
def test_one_file_for_two_is_refused(words, told, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MLP.save("graph.json")
    PLAN.save("plan.json")
    for name in ("machine.json", "x.measurements.json"):
        MACHINE_FILE.save(cluster("laptop", 1, 2), name)
    Path("hints.json").write_text('{"version": 1, "hints": {}}')
    Path("config.json").write_text("{}")
    os.symlink("x", "link")
    os.symlink("plan.json", "link-to-plan")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and told in result.output, result.output
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}


def test_pipes_and_devices_take_several(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PLAN.save("plan.json")
    words = ["explain", "plan.json", "--html", "/dev/null", "--trace", "/dev/null"]
    assert CliRunner().invoke(main, words).exit_code == 0
