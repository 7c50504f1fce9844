"""Gradients travel while the backward pass goes on: a wait in the executor can be seen."""

import io
import json
from importlib.util import find_spec

import pytest

if not find_spec("oneflow"):
    pytest.importorskip("torch", reason="needs OneFlow or PyTorch")

from autoddl.tools.box import Box
from tests.runtime.conftest import HERE, PATH

pytestmark = [pytest.mark.usefixtures("possible"), pytest.mark.full]


def test_a_wait_in_the_executor_ends_the_overlap():
    """Six gradients of 1 MB, each 84 ms on such links, beside as many products of matrices."""
    out = io.StringIO()
    with Box(2, 1, "100mbit") as box:
        command = [str(HERE / "workers" / "overlap.py")]
        status = box.run(command, {"PYTHONPATH": PATH}, output=out, overlaps=True)
    assert status == 0, out.getvalue()
    (line,) = (text for text in out.getvalue().splitlines() if "overlapped" in text)
    seconds = json.loads(line[line.index("{") :])
    assert seconds["waiting"] > 1.15 * seconds["overlapped"], seconds
