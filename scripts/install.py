"""Install packages into the Python that runs this: by uv, else by pip, which takes four times as
long.

python scripts/install.py [as of pip install]

uv does not read pip's configuration, so it is told where pip would look and within which
constraints. Where uv cannot be had, or cannot install from there, pip does all by itself.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# Most modules are never imported: to compile those of transformers alone takes 12 s.
OPTIONS = ["--quiet", "--no-compile"]
UV_WORDS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}


def uv_words(configuration: str) -> list[str]:
    """What tells uv what pip's configuration says, as `pip config list` prints it."""
    words: dict[tuple[str, str], None] = {}
    for line in configuration.splitlines():
        name, _, value = line.partition("=")
        option = UV_WORDS.get(name.rpartition(".")[2])
        if option is None:
            continue
        for place in str(ast.literal_eval(value)).split():
            path = place.removeprefix("file://")
            # pip passes over a folder that is not there, uv does not
            if "://" in path or Path(path).exists():
                words[option, place] = None
    return [word for pair in words for word in pair]


def main(wanted: list[str]) -> int:
    """The exit status of the installation."""
    told = subprocess.run([*PIP, "config", "list"], stdout=subprocess.PIPE, text=True, check=True)
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--quiet"]
    by_uv += ["--index-strategy", "unsafe-best-match", *uv_words(told.stdout), *wanted]
    by_pip = [*PIP, "install", *OPTIONS]
    has_uv = subprocess.call([*by_pip, "-c", "constraints.txt", "uv"]) == 0
    if has_uv and subprocess.call(by_uv) == 0:
        return 0
    print("uv could not install it; pip does, which takes longer", file=sys.stderr)
    return subprocess.call([*by_pip, *wanted])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
