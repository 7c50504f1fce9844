"""Run the tests in two parts at once, as most of them keep one core busy.

python scripts/run_tests.py [-m EXPRESSION] [pytest options]

Those marked `alone` measure time, and run before the others. The first part's output comes as it is
made, the second's after it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("tests/runtime", "tests/search")  # and the files beside these: half
NOTHING_CHOSEN = 5  # pytest's exit status


def main(words: list[str]) -> int:
    """The largest exit status of the parts that had a test to run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", default="", metavar="EXPRESSION", help="as of pytest")
    known, options = parser.parse_known_args(words)
    command = [sys.executable, "-m", "pytest", *options]
    statuses = [subprocess.call([*command, "-m", _and(known.m, "alone")], cwd=ROOT)]
    command += ["-m", _and(known.m, "not alone")]
    files = sorted((ROOT / "tests").glob("test_*.py"))
    first = [*FIRST, *(str(path.relative_to(ROOT)) for path in files)]
    second = ["tests", *(f"--ignore={path}" for path in first)]
    with tempfile.TemporaryFile() as output:
        cache = ["-o", "cache_dir=.pytest_cache/second"]
        beside = subprocess.Popen(
            [*command, *second, *cache], cwd=ROOT, stdout=output, stderr=output
        )
        try:
            statuses.append(subprocess.call([*command, *first], cwd=ROOT))
            statuses.append(beside.wait())
        finally:
            beside.terminate()
            beside.wait()
            output.seek(0)
            print(output.read().decode(errors="replace"), flush=True)
    return max((s for s in statuses if s != NOTHING_CHOSEN), default=NOTHING_CHOSEN)


def _and(expression: str, other: str) -> str:
    return f"({expression}) and {other}" if expression else other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
