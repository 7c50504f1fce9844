"""The command line: a rank gets what the user gave, and mistakes are told."""

import pytest
from click.testing import CliRunner

from autoddl.tools.calibration.calibrate import QUICK, CalibrateJob, busy_text
from autoddl.tools.cli import main
from autoddl.tools.commands.calibrate import calibrate


def parsed(words: list[str]) -> CalibrateJob:
    options = calibrate.make_context("calibrate", words).params
    given = {k: v for k, v in options.items() if v is not None}
    quick = given.pop("quick")
    given.pop("only_refit")
    return CalibrateJob(**{**(QUICK if quick else {}), **given})


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_a_rank_gets_the_options_that_were_given(tmp_path, quick):
    words = [
        "--output", str(tmp_path / "m.json"), "--name", "mine", "--nodes", "2",
        "--gpus-per-node", "4", "--confidence", "0.9", "--budget", "20", "--max-call", "0.5",
        "--timeout", "7", "--repeats", "1000", "--no-point-to-point", "--device", "cuda", *quick,
    ]  # fmt: skip
    job = parsed(words)
    assert parsed(job.words()[3:]) == job
    assert (job.nodes, job.repeats, job.point_to_point) == (2, 1000, False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-bytes", "2048"], "a fit needs at least two message sizes"),
        (["--confidence", "1"], "--confidence must be from 0.5 to below 1"),
        (["--precision", "0"], "--precision must be more than zero"),
        (["--device-from", "none.json"], "none.json: no such file"),
        (["--gpus-per-node", "1"], "start at least two processes"),
        (["--refit"], "m.measurements.json: no such file"),
    ],
)
def test_mistakes_are_explained(tmp_path, more, message):
    words = ["calibrate", "--output", str(tmp_path / "m.json"), *more]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and message in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    result = CliRunner().invoke(main, ["calibrate", "--output", str(tmp_path / "no" / "m.json")])
    assert result.exit_code == 2 and "the folder does not exist" in result.output


def test_a_busy_machine_is_told(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for load, told in ((0.3, False), (2.5, True)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert ("a load of 2.5 on 4 cores" in busy_text()) == told
        assert bool(busy_text()) == told
