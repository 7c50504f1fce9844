"""What docs/pytorch.md shows is run, as printed."""

import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import autoddl
from tests.ranks import ROOT

PAGE = (ROOT / "docs" / "pytorch.md").read_text()


def test_the_program_trains_as_one_process_does(tmp_path):
    program = re.search(r"^```python\n(# train.py\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    command = re.search(r"^torchrun .*$", PAGE, re.MULTILINE)
    assert program and command
    (tmp_path / "train.py").write_text(program[1])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *shlex.split(command[0])[1:]],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = re.search(r"^loss (\S+)$", done.stdout, re.MULTILINE)
    assert printed

    plain: dict[str, Any] = {}
    exec(program[1].split("trainer = ")[0], plain)
    model = plain["model"]
    saved = {name: torch.empty_like(x) for name, x in model.state_dict().items()}
    dcp.load(saved, checkpoint_id=tmp_path / "for_others", no_dist=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(20):
        x, target = plain["batch"](step)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert float(printed[1]) == pytest.approx(losses[-1], abs=1e-3)  # three digits are printed
    for name, x in model.state_dict().items():
        torch.testing.assert_close(saved[name], x, rtol=1e-4, atol=1e-5)


def test_modules_that_run_as_they_are(capsys):
    found = re.search(
        r"^```python\n(class Spectrum.*?)^# (.*?\n)```$", PAGE, re.DOTALL | re.MULTILINE
    )
    assert found
    exec(found[1], {"torch": torch, "nn": torch.nn, "autoddl": autoddl})
    assert capsys.readouterr().out == found[2]
