"""What README and docs show is run: programs and commands, and what they print is what is shown.

A page is worked through from top to bottom in an empty folder. A ```python block whose first line
names a file is saved as that file; the others are one program, run where the last of them stands.
Each line of a ```bash block is run, and of a ```text block each line must stand in the output of
what comes before it, in this order, but for `...` and white space. Comments in a page's source:
`<!-- first: code -->` stands at the head of the program, and `<!-- not run: why -->` before a block
whose commands are only parsed.

With the folder of an environment's programs in AUTODDL_INSTALLED (`/venv/bin`), where a wheel of
autoddl is installed, its Python and its `autoddl` run the pages, and nothing of this clone:

    AUTODDL_INSTALLED=/venv/bin python -m pytest tests/test_docs.py -k page_shows
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from autoddl.tools.cli import main

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LAST_READ = (
    "hints",
    "memory",
    "pipelines",
    "quickstart",
    "reading-a-plan",
    "whale",
)  # whose commands take longest for what no other page has
BLOCK = re.compile(
    r"(?:^<!-- (?P<key>first|not run):\s(?P<note>.*?)\s-->\n)?"
    r"^```(?P<language>python|bash|text)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# (\w+\.py)\n")
WIDTH = "80"
INSTALLED = os.environ.get("AUTODDL_INSTALLED")
SET_BY_ONEFLOW = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")  # when imported


class Page:
    """A page at work in `folder`. `output`: of the command or program run last."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.folder = folder
        self.blocks = list(BLOCK.finditer(path.read_text()))
        self.output = ""

    def run(self) -> None:
        program = [b for b in self.blocks if is_program(b)]
        promised: list[str] = []  # what the page shows of its program's output
        printed, of_program = "", False
        for block in self.blocks:
            text = block["text"]
            if block["language"] == "text":
                if of_program:
                    promised.append(text)
                else:
                    check_shown(text, self.output)
                continue
            of_program = is_program(block)
            if block["language"] == "bash":
                for line in text.splitlines():
                    self.command(line, only_parse=block["key"] == "not run")
            elif file := FILE.match(text):
                (self.folder / file[1]).write_text(text)
            elif block["key"] == "not run":
                compile(text, "block", "exec")
            elif block is program[-1]:
                self.program([b["note"] or "" for b in program[:1]] + [b["text"] for b in program])
                printed = self.output
        for text in promised:
            check_shown(text, printed)

    def run_what_is_left_out(self, why: str) -> None:
        """Blocks that `run` only parses for this reason, each by itself; at least one."""
        blocks = [b for b in self.blocks if b["key"] == "not run" and b["note"] == why]
        assert blocks
        for block in blocks:
            if block["language"] == "python":
                self.program([block["text"]])
            else:
                for line in block["text"].splitlines():
                    self.command(line, only_parse=False)

    def program(self, parts: Sequence[str]) -> None:
        env = {name: value for name, value in os.environ.items() if name not in SET_BY_ONEFLOW}
        python = f"{INSTALLED}/python" if INSTALLED else sys.executable
        command = [python, "-c", "\n".join(parts)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self.output = done.stdout

    def command(self, line: str, only_parse: bool) -> None:
        if only_parse:
            check_parses(line)
        elif INSTALLED:
            env = {**os.environ, "PATH": f"{INSTALLED}:{os.environ['PATH']}"}
            done = subprocess.run(line, shell=True, env=env, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            self.output = done.stdout
        elif line.startswith("autoddl train"):
            self.program(["from autoddl.tools.cli import main", f"main({shlex.split(line)[1:]})"])
        elif line.startswith("autoddl "):
            result = CliRunner().invoke(main, shlex.split(line)[1:])
            assert result.exit_code == 0, (line, result.output, result.exception)
            self.output = result.stdout
        else:
            raise AssertionError(f"mark it as not run, or teach this test: {line}")


def is_program(block: re.Match[str]) -> bool:
    """Part of the page's one program."""
    python = block["language"] == "python" and block["key"] != "not run"
    return python and not FILE.match(block["text"])


def check_parses(line: str) -> None:
    """A command's options exist; what is started by another program is looked for in its words."""
    words = shlex.split(line)
    for inner in words:
        if " " in inner and "autoddl" in inner:
            check_parses(inner)
    if "autoddl" not in words:
        return
    _, name, *words = words[words.index("autoddl") :]
    command = main.commands[name]
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)


def check_shown(shown: str, output: str) -> None:
    """Each line that is shown stands in the output, in this order; `...` stands for any lines."""
    there = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        if wanted not in ("", "..."):
            assert wanted in there, f"not in the output, or not there: {line}\n{output}"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[pytest.mark.full] if p.stem in LAST_READ else [], id=p.stem)
        for p in PAGES
        if BLOCK.search(p.read_text())
    ],
)
def test_what_a_page_shows_runs(path, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    Page(path, tmp_path).run()


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="root makes hosts in a box")
def test_what_needs_root_on_a_page_runs(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    page = Page(ROOT / "docs" / "hosts-and-slurm.md", tmp_path)
    page.run()
    page.run_what_is_left_out("needs root")


def enter(folder: Path, monkeypatch) -> None:
    """Go there, as a reader would who has this clone, or the installed wheel alone."""
    monkeypatch.chdir(folder)
    if INSTALLED:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    monkeypatch.setenv("COLUMNS", WIDTH)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_programs_for_several_processes_import_autoddl_first():
    """OneFlow's import waits for all ranks: only what is there before can say who is missing."""
    programs = [
        block["text"] for path in PAGES for block in BLOCK.finditer(path.read_text())
        if FILE.match(block["text"]) and "autoddl.parallelize(" in block["text"]
        and "import oneflow" in block["text"]
    ]  # fmt: skip
    assert len(programs) >= 2
    for text in programs:
        assert text.index("import autoddl") < text.index("import oneflow"), text


def test_every_command_is_shown():
    text = "\n".join(path.read_text() for path in PAGES)
    missing = [name for name in main.commands if f"autoddl {name}" not in text]
    assert not missing


def test_the_readmes_claims_are_those_of_the_results():
    claims = " ".join((ROOT / "README.md").read_text().split())
    planned = result("planning_speed.json")["cases"]
    large, huge = planned["gpt_36b_256"], planned["gpt3_175b_1024x8"]
    assert large["gap"] < 1e-5
    assert f"the proven optimum in {large['wall_s']:.1f} s on two cores" in claims
    least = max(huge["gap"], result("golden.json")["gpt3_175b_1024x8"]["gap"])
    told = re.search(rf"to within (\S+) % in {huge['wall_s']:.1f} s", claims)
    assert told is not None and 0 <= float(told[1]) / 100 - least < 1e-4
    links = [
        payload / case["expected_payload"] - 1
        for cases in result("box/bytes.json")["cases"].values()
        for case in cases
        if case["expected_payload"]  # and the others stay silent
        for payload in case["payloads"]
    ]
    assert f"On {len(links):,} links" in claims
    assert f"to {max(map(abs, links)):.2%} at worst".replace("%", " %") in claims
    runs = result("pipeline/exactness.json")
    assert f"In {len(runs)} cases" in claims
    worst = max(max(run["loss"], run["state"]) for run in runs)
    assert f"by at most {worst:.0e}".replace("e-0", "e-") in claims


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def test_shown_output_that_is_not_there_is_found():
    check_shown("a  1\n...\nb 2\n", "a 1\nx\nb   2\n")
    for shown in ("a 2\n", "b 2\na 1\n"):
        with pytest.raises(AssertionError, match="not in the output"):
            check_shown(shown, "a 1\nb 2\n")
