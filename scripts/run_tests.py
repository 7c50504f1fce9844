"""Run the tests in two parts at once, as most of them keep one core busy.

python scripts/run_tests.py [pytest options]

The first part's output comes as it is made, the second's after it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("tests/backend", "tests/staged_plan")  # and the files beside these; about half of the time


def main(options: list[str]) -> int:
    """The exit status of the part that failed, if one did."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    first = [*FIRST, *(str(path.relative_to(ROOT)) for path in files)]
    second = ["tests", *(f"--ignore={path}" for path in first)]
    command = [sys.executable, "-m", "pytest", *options]
    with tempfile.TemporaryFile() as output:
        cache = ["-o", "cache_dir=.pytest_cache/second"]
        beside = subprocess.Popen(
            [*command, *second, *cache], cwd=ROOT, stdout=output, stderr=output
        )
        try:
            status = subprocess.call([*command, *first], cwd=ROOT)
            others = beside.wait()
        finally:
            beside.terminate()
            beside.wait()
            output.seek(0)
            print(output.read().decode(errors="replace"), flush=True)
    return status or others


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
