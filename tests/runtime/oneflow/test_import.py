"""What is seen when OneFlow is imported."""

import subprocess
import sys

import pytest

pytest.importorskip("oneflow", reason="needs OneFlow")


def test_a_module_of_ones_own_brings_no_line_of_oneflows_libraries(tmp_path):
    """It imports OneFlow before autoddl does; the line is about InfiniBand, on every machine."""
    (tmp_path / "own.py").write_text("import oneflow\n\ndef entry(): ...\n")
    asked = "from autoddl.runtime.framework import framework_of_entry as of; of('own:entry', 'x')"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "libibverbs" not in done.stdout + done.stderr
