"""That a command writes each of its files into a place of its own."""

from __future__ import annotations

import os
from itertools import combinations


def check_apart(reads: dict[str, str | None], **writes: str | None) -> None:
    """ValueError if two files to be written are one, or one of them is what the command reads.

    reads:  by the option or argument; what is no file, such as a model's name, is left out
    writes: by the option, without its dashes

    Pipes and devices take what several write, one after the other.
    """
    given = {f"--{name}": path for name, path in writes.items() if path}
    files = {option: os.path.realpath(path) for option, path in given.items() if _is_kept(path)}
    for (one, path), (other, same) in combinations(files.items(), 2):
        if path == same:
            raise ValueError(f"{one} and {other} are both {given[one]}; give each its own file")
    for name, given_path in reads.items():
        path = (given_path or "").removeprefix("hf:")
        path = path if os.path.isfile(path) else path.rpartition(":")[0]  # hf:config.json:4096
        read = os.path.realpath(path) if os.path.isfile(path) else None
        for option, written in files.items():
            if written == read:
                raise ValueError(
                    f"{option} would replace {path}, which is {name} of this command; give it "
                    "another name"
                )


def _is_kept(path: str) -> bool:
    """A file, or where none is yet."""
    return "\0" not in path and (os.path.isfile(path) or not os.path.exists(path))
