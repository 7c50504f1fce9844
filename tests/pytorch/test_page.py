"""What docs/pytorch.md shows is run, as printed.

With an environment's programs in AUTODDL_INSTALLED its Python runs the program, as in
`tests/test_docs.py`: a wheel of autoddl is installed there, beside torch.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.ranks import ROOT

PAGE = (ROOT / "docs" / "pytorch.md").read_text()


def run(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python on these words: this one on this clone, or that where autoddl is installed."""
    installed, env = os.environ.get("AUTODDL_INSTALLED"), {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    if not installed:
        env["PYTHONPATH"] = str(ROOT)
    python = f"{installed}/python" if installed else sys.executable
    done = subprocess.run(
        [python, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.full  # test_watched.py trains under torchrun, test_state.py saves for others
def test_the_program_trains_as_one_process_does(tmp_path):
    program = re.search(r"^```python\n(# train.py\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    command = re.search(r"^torchrun .*$", PAGE, re.MULTILINE)
    assert program and command
    (tmp_path / "train.py").write_text(program[1])
    done = run("-m", "torch.distributed.run", *shlex.split(command[0])[1:], folder=tmp_path)
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


@pytest.mark.full
def test_modules_that_run_as_they_are():
    found = re.search(
        r"^```python\n(class Spectrum.*?)^# (.*?\n)```$", PAGE, re.DOTALL | re.MULTILINE
    )
    assert found
    imports = "import autoddl, torch\nfrom torch import nn\n"
    assert run("-c", imports + found[1]).stdout == found[2]
