"""A headless browser, to make a picture of a page. Looks for Chromium or Chrome on PATH."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

from ..._files import write_atomically

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER = "autoddl-answer"


def find_browser() -> str | None:
    """The path of a browser, None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def run_browser(html: str, *options: str, timeout_s: float = 60.0) -> str:
    """Open `html` in a browser without a window, and give what it writes to stdout.

    Raises ValueError if there is no browser, or if it fails.
    """
    browser = find_browser()
    if browser is None:
        raise ValueError(
            "a picture of the page needs Chromium or Chrome on PATH (on Debian: apt install "
            "chromium); the page itself, --html, needs none"
        )
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        page = Path(folder) / "page.html"
        page.write_text(html)
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={folder}/profile",
            *options, page.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = (error.stderr or b"" if isinstance(error.stderr, bytes) else error.stderr) or ""
            raise ValueError(f"{browser} did not show the page: {said!s:.300}") from error
        return done.stdout


def screenshot(html: str, file: str | Path, width: int = 1120) -> None:
    """Write a PNG of the whole page, `width` points wide. ValueError as for `run_browser`."""
    told = ask(html, "document.documentElement.scrollHeight", width)
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        picture = Path(folder) / "page.png"
        run_browser(html, f"--screenshot={picture}", f"--window-size={width},{int(told)}")
        if not picture.is_file():
            raise ValueError("the browser wrote no picture")
        write_atomically(file, picture.read_bytes())


def ask(html: str, expression: str, width: int = 1120) -> Any:
    """The value (through JSON) of a JavaScript expression on the page as it is shown."""
    script = (
        "<script>addEventListener('load', () => { const told = JSON.stringify("
        f"{expression}); const out = document.createElement('pre');"
        f"out.id = '{_ANSWER}'; out.textContent = told;"
        "document.documentElement.append(out); })</script>"
    )
    shown = run_browser(html + script, "--dump-dom", f"--window-size={width},900")
    found = re.search(rf'<pre id="{_ANSWER}">(.*?)</pre>', shown, re.DOTALL)
    if found is None:
        raise ValueError(f"the browser gave no answer to {expression!r}")
    return json.loads(unescape(found[1]))
