"""Run the tests in parts, two at once, as most of them keep one core busy.

python scripts/run_tests.py [-m EXPRESSION] [pytest options]

Those marked `alone` measure time, and run after the others. Those of PyTorch run in an environment
of their own (`scripts/setup_torch`), as soon as one of the other parts has ended. The first part's
output comes as it is made, the others' after it; each ends with its slowest tests. What reads the
source alone (`tests/test_layers.py`) is left to `make check`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST, LAST = "tests/runtime", "tests/search"  # the longest to run; little, with the files beside
CHECKED = "tests/test_layers.py"  # by `make check`
TORCH = "tests/pytorch", "tests/runtime/test_as_planned.py"  # that runs on both frameworks
SLOWEST = "--durations=25"
NOTHING_CHOSEN = 5  # pytest's exit status


def main(words: list[str]) -> int:
    """The largest exit status of the parts that had a test to run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", default="", metavar="EXPRESSION", help="as of pytest")
    known, options = parser.parse_known_args(words)
    # Without compiled files each of hundreds of processes takes two more seconds to start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def command(python: str, marks: str, *paths: str) -> list[str]:
        return [python, "-m", "pytest", SLOWEST, *options, "-m", _and(known.m, marks), *paths]

    every = sorted((ROOT / "tests").rglob("test_*.py"))  # naming files: to collect all takes 15 s
    alone = [str(p.relative_to(ROOT)) for p in every if "mark.alone" in p.read_text()]
    files = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "tests").glob("test_*.py"))]
    last = [LAST, *(path for path in files if path != CHECKED)]
    rest = ["tests", *(f"--ignore={path}" for path in (FIRST, LAST, *files, TORCH[0]))]
    torch = str(ROOT / ".venv-torch" / "bin" / "python")
    parts = [
        command(sys.executable, "not alone", FIRST),
        [*command(sys.executable, "not alone", *rest), "-o", "cache_dir=.pytest_cache/second"],
        [*command(torch, "not alone", *TORCH), "-o", "cache_dir=.pytest_cache/torch"],
        [*command(sys.executable, "not alone", *last), "-o", "cache_dir=.pytest_cache/last"],
    ]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(n)) for n in range(len(parts))]
        try:
            statuses = _run(parts, outputs)
        finally:
            for output in outputs[1:]:
                if output.exists():
                    print(output.read_text(errors="replace"), flush=True)
    statuses.append(subprocess.call(command(sys.executable, "alone", *alone), cwd=ROOT))
    return max((s for s in statuses if s != NOTHING_CHOSEN), default=NOTHING_CHOSEN)


def _run(parts: list[list[str]], outputs: list[Path]) -> list[int]:
    """The exit statuses of commands, two at a time; all but the first write into `outputs`."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for part, output in zip(parts, outputs, strict=True):
            while sum(process.poll() is None for process in running) == 2:
                time.sleep(0.2)
            if running:
                with output.open("wb") as file:
                    running.append(subprocess.Popen(part, cwd=ROOT, stdout=file, stderr=file))
            else:
                running.append(subprocess.Popen(part, cwd=ROOT))
        return [process.wait() for process in running]
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _and(expression: str, other: str) -> str:
    return f"({expression}) and {other}" if expression else other


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
