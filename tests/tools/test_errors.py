"""What a failing command says: of the user's module, of another kind of file, of a closed pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoddl.cluster.spec import MACHINES
from autoddl.tools.cli import main
from tests.plans.example import MLP, PLAN

ROOT = Path(__file__).parents[2]
LAPTOP = "laptop"
ZOO = """
import numpy

def small():
    return inner()

def inner():
    return numpy.zeros(3) @ numpy.zeros(4)

def outer():
    return 3
"""


def autoddl(folder: Path, *words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoddl", *words], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **options,
    )  # fmt: skip


def without_signs(stderr: str) -> list[str]:
    """Its lines but for signs of life, which a busy machine gives time for."""
    signs = ("comparing ", "planning ", "reading ", "drawing ")
    return [line for line in stderr.splitlines() if not line.startswith(signs)]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "zoo.py").write_text(ZOO)
    MLP.save(tmp_path / "graph.json")
    PLAN.save(tmp_path / "plan.json")
    return tmp_path


def test_an_error_of_the_users_module_is_shown_without_our_frames(files):
    done = autoddl(files, "trace", "zoo:small", "-o", "out.json")
    assert done.returncode == 2 and done.stdout == ""
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert len(frames) == 2 and all("zoo.py" in frame for frame in frames)
    assert "matmul" in done.stderr
    whole = autoddl(files, "--debug", "trace", "zoo:small", "-o", "out.json")
    assert "click" in whole.stderr


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "def small():\n    raise SystemExit"])
def test_a_module_that_exits_is_no_success(files, text):
    (files / "exits.py").write_text(text)
    done = autoddl(files, "plan", "exits:small", "--cluster", LAPTOP)
    assert done.returncode == 2 and done.stdout == ""
    assert "in your module" in done.stderr and "SystemExit" in done.stderr


def test_a_module_that_is_no_python_is_told(files):
    (files / "broken.py").write_text("def small(:")
    done = autoddl(files, "plan", "broken:small", "--cluster", LAPTOP)
    assert done.returncode == 2 and "is no Python: invalid syntax (" in done.stderr


def test_a_mistake_that_we_find_has_no_frames(files):
    done = autoddl(files, "trace", "zoo:outer", "-o", "out.json")
    assert done.returncode == 2 and "must return (model, example, loss)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "plan.json", "--cluster", LAPTOP), "plan.json is a plan; a graph is needed here"),
        (
            ("plan", f"{MACHINES}/laptop.json", "--cluster", LAPTOP),
            "laptop.json is a machine file; a graph is",
        ),
        (("plan", "graph.json", "--cluster", "plan.json"), "is a plan; a machine file is needed"),
        (("explain", "graph.json"), "graph.json is a graph; a plan is needed here ('autoddl plan"),
        (("diff", "plan.json", "graph.json"), "graph.json is a graph"),
        (("explain", "."), "Is a directory"),
        (("train", "plan.json", "--cluster", LAPTOP), "a plan is given as --plan FILE"),
    ],
)
def test_a_wrong_kind_of_file_is_named_as_what_it_is(files, words, told, monkeypatch):
    monkeypatch.chdir(files)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and told in done.stderr, done.stderr
    assert len(without_signs(done.stderr)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "plan.json"),
        pytest.param(("explain", "plan.json", "--json"), marks=pytest.mark.full),
    ],
)
def test_a_reader_that_leaves_is_no_error(files, words):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "autoddl", *words], cwd=files, stdout=nobody,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert (done.returncode, without_signs(done.stderr)) == (0, [])


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "\x1b]0;x\x07.json"),
        ("explain", "plan.json", "\x1b]0;x\x07"),
        ("explain", "plan.json", "--\x1b]0;x\x07"),
        ("--\x1b]0;x\x07",),
        ("plan", "os:\x1b]0;x\x07", "--cluster", "laptop"),
        ("plan", "graph.json", "--cluster", "\x9b5mx", "--search", "integer"),
    ],
)
def test_what_a_terminal_would_obey_does_not_reach_it(files, words, monkeypatch):
    monkeypatch.chdir(files)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and "Error" in done.stderr
    for text in (done.stdout, done.stderr):
        assert all(c.isprintable() or c == "\n" for c in text), text


def test_a_picture_that_takes_long_says_what_is_done(files):
    """The browser is one that needs a second, and then fails."""
    browser = files / "chromium"
    browser.write_text("#!/bin/sh\nsleep 1\nexit 1\n")
    browser.chmod(0o755)
    path = f"{files}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "autoddl", "explain", "plan.json", "--png", "page.png"], cwd=files,
        capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
    )  # fmt: skip
    assert done.returncode == 2 and "did not show the page" in done.stderr
    assert "drawing plan.json: " in done.stderr
