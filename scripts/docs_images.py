"""Draws docs/images anew: a plan's page in Chromium, and what commands print in terminals.

python scripts/docs_images.py [FOLDER]    (needs OneFlow, Chromium and Pillow, which matplotlib has)
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from autoddl.plans import Plan
from autoddl.tools.report.browser import ask, run_browser
from autoddl.tools.report.page import page

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DARK = "--blink-settings=preferredColorScheme=0"
WIDE, NARROW = 1000, 390  # points: a page of the site, a phone
CHOOSE = """addEventListener("load", () => {
    const layers = document.querySelector("#mesh select");
    [...layers.options].find((option) => option.text === "classifier.3").selected = true;
    layers.dispatchEvent(new Event("change"));
});"""
STYLE = "font: 14px/1.32 'DejaVu Sans Mono', monospace; margin: 16px; color: #1c2430"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    with tempfile.TemporaryDirectory() as here:

        def run(command: str, columns: int = 80) -> str:
            words = [sys.executable, "-m", *command.split()]
            env = {**os.environ, "COLUMNS": str(columns), "GLOG_minloglevel": "3"}
            return subprocess.run(
                words, cwd=here, env=env, stdout=subprocess.PIPE, text=True, check=True
            ).stdout

        run("autoddl trace vgg13 -o vgg13.json")
        run("autoddl plan vgg13.json --cluster gcp_a100 --nodes 2 --gpus-per-node 4 -o plan.json")
        cut = "--stages 2 --schedule eager-1f1b"
        run(f"autoddl plan gpt_small --cluster laptop {cut} -o staged.json")
        plan, staged = (page(Plan.load(Path(here, f"{name}.json"))) for name in ("plan", "staged"))
        picture(plan, folder / "page.png", WIDE, 0, 1230)
        picture(plan, folder / "page-dark.png", WIDE, 0, 1000, DARK)
        picture(plan, folder / "page-phone.png", NARROW, 0, 1250)
        split = f"{plan}<script>{CHOOSE}</script>"
        picture(split, folder / "page-layers.png", WIDE, top_of(plan, "#mesh"), 900)
        picture(staged, folder / "page-pipeline.png", WIDE, top_of(staged, "#stages"), 520)
        for name, columns, command in (
            ("plan", 80, "autoddl plan vgg13.json --cluster piz_daint --nodes 32"),
            ("explain", 120, "autoddl explain plan.json"),
            ("compare", 200, "autoddl compare vgg13.json --cluster piz_daint --nodes 32"),
        ):
            terminal(command, columns, run, folder / f"terminal-{name}-{columns}.png")


def picture(page: str, file: Path, width: int, top: int, height: int, *options: str) -> None:
    """So much of a page from `top` on."""
    whole = int(ask(page, "document.documentElement.scrollHeight", width))
    run_browser(page, f"--screenshot={file}", f"--window-size={width},{whole}", *options)
    with Image.open(file) as image:
        cut = image.crop((0, top, width, min(top + height, whole)))
    cut.save(file, optimize=True)


def top_of(page: str, element: str) -> int:
    """Where the heading above an element begins."""
    where = f"document.querySelector('{element}').closest('section').getBoundingClientRect().top"
    return int(ask(page, where, WIDE))


def terminal(command: str, columns: int, run: Callable[[str, int], str], file: Path) -> None:
    """A command and what it prints in a terminal of so many columns."""
    shown = f"<b>$ {command}</b>\n{html.escape(run(command, columns))}"
    style = f"{STYLE}; width: {columns}ch"
    text = f'<!doctype html><meta charset="utf-8"><pre style="{style}">{shown}</pre>'
    room = "(r => [r.right + 16, r.bottom + 16])(document.body.firstChild.getBoundingClientRect())"
    size = ask(text, room, 3000)
    width, height = map(int, size)
    run_browser(text, f"--screenshot={file}", f"--window-size={width},{height}")


if __name__ == "__main__":
    main()
