"""Steps send the bytes that the plan counts, and no more."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.runtime.conftest import HERE, PATH

ALONE = ["unshare", "--map-root-user", "--net"]
START = (
    "import sys; from autoddl.runtime.jobs.launch import run_processes;"
    "sys.exit(run_processes(sys.argv[1:], 4, prefix=False))"
)


def has_own_network() -> bool:
    """True if this user may run a program in a network of its own."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    up = [*ALONE, "ip", "link", "set", "lo", "up"]
    return subprocess.run(up, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_own_network(), reason="needs a network that no one else uses")
def test_measured_bytes_are_the_counted_ones():
    script = f"ip link set lo up && exec {sys.executable} -c '{START}' {HERE}/workers/bytes.py 1 4"
    done = subprocess.run(
        [*ALONE, "env", f"PYTHONPATH={PATH}", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == 11
    for each in found:
        # headers and acknowledgements add some thousand bytes
        assert abs(each["measured"] - each["counted"]) < 0.005 * each["counted"] + 2e4, each
