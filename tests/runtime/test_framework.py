"""What a framework's import leaves as it was."""

import os
import subprocess
import sys

from tests.ranks import ROOT

# OneFlow stands for itself: a module whose import takes Ctrl-C away, in C, as the real one does
TEXT = """
import ctypes, os, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules["oneflow"] = types.ModuleType("oneflow")
from autoddl.runtime.framework import need_oneflow
ctypes.CDLL(None).signal(int(signal.SIGINT), None)
need_oneflow("a search")
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("the best plan so far")
"""


def test_ctrl_c_is_pythons_again_once_oneflow_is_imported():
    """OneFlow's own handler had ended `autoddl plan MODEL` with status 255 and no plan."""
    done = subprocess.run([sys.executable, "-c", TEXT], capture_output=True, text=True)
    assert done.stdout == "the best plan so far\n", done


# OneFlow stands for itself: a module in whose import Ctrl-C is pressed
IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from autoddl.runtime.framework import need_oneflow
try:
    need_oneflow("a search")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_oneflow_is_imported_comes_after_it(tmp_path):
    """It was told as a OneFlow that cannot be imported, or aborted."""
    pressed = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('imported')\n"
    (tmp_path / "oneflow.py").write_text(pressed)
    paths = os.pathsep.join(map(str, (tmp_path, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout == "imported\ninterrupted\n", done
