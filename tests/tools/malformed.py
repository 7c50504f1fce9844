"""Inputs that are wrong, for every command, every kind of file and every call.

`commands` are made of the definitions of the command line, so that a new option is tried too.
"""

import copy
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from autoddl.tools.cli import main
from tests.plans.test_mutations import WRONG, at, paths

INTEGERS = (
    "x",
    "",
    "1e3",
    "-1",
    "0",
    "1.5",
    "9" * 400,
    "0x10",
    "nan",
    "None",
    "١٢",
    "-9" + "0" * 30,
)
NUMBERS = ("nan", "inf", "-inf", "1e400", "-1", "0", "abc", "", "1,5", "--", "1e-400", "9" * 400)
NAMES = (
    "", "\x1b[31mred", "[/x]", "$\\frac{$", "ü" * 300, "a:b:c", ":", "x:", ":x", "os:sep",
    "json:loads", "json:no", "..", "-", "--", "hf:none.json", "none:none", "nul\0l", "a\nb",
    "a" * 5000,
)  # fmt: skip
PRESENT = ("gpt_small", "laptop", "3:1", "2x2", "1gbit")  # right for one option, wrong for another


def bad_files(folder: Path, good: dict[str, Path]) -> list[str]:
    """Paths of what is no file of any kind; no good one of another kind is wrong as well."""
    texts = {
        "empty.json": b"", "binary": bytes(range(256)) * 9, "latin.json": b'{"a": "\xe9"}',
        "deep.json": b"[" * 100_000, "deeper.json": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "huge.json": b'{"version": 1' + b"0" * 5000 + b"}", "null.json": b"null",
        "list.json": b"[1, 2]", "number.json": b"1e999", "text.json": b'"x"',
        "nan.json": b'{"version": NaN}', "bom.json": b"\xef\xbb\xbf{}",
        "wide.json": "{}".encode("utf-16"), "zeros": b"\0" * 1000,
        "twice.json": b'{"version": 4, "version": 4}', "x.py": b"raise SystemExit(0)",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    others = ["fifo", "loop", "missing/none.json", "."]
    every = [str(folder / name) for name in (*texts, *others)]
    return [*every, "/dev/null", "/dev/full", *map(str, good.values())]


def mutated(text: str, rng: random.Random) -> bytes:
    """A file with one to three fields changed, or its bytes."""
    if rng.random() < 0.25:
        data = bytearray(text.encode())
        how = rng.choice(("cut", "flip", "twice", "gone", "number"))
        at_byte, length = rng.randrange(len(data)), rng.randint(1, 40)
        if how == "cut":
            del data[at_byte:]
        elif how == "flip":
            data[at_byte] ^= 1 << rng.randrange(8)
        elif how == "twice":
            data[at_byte:at_byte] = data[at_byte : at_byte + length]
        elif how == "gone":
            del data[at_byte : at_byte + length]
        else:
            digits = [n for n, byte in enumerate(data) if chr(byte).isdigit()]
            data[rng.choice(digits)] = ord(rng.choice("0123456789-.e"))
        return bytes(data)
    changed = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(paths(changed))
        if not places:
            break
        *home, key = rng.choice(places)
        parent = at(changed, tuple(home))
        how = rng.choice(("gone", "another's", "wrong", "wrong", "more"))
        if how == "gone":
            del parent[key]
        elif how == "another's":
            parent[key] = copy.deepcopy(at(changed, rng.choice(places)))
        elif how == "wrong":
            wrong = rng.choice((*WRONG, 2**40, 1e-300, "\x1b[31m", 1.5, [[1] * 50] * 50))
            parent[key] = copy.deepcopy(wrong)
        elif isinstance(parent, dict):
            parent[rng.choice(("x", "", "__class__", "version"))] = copy.deepcopy(rng.choice(WRONG))
    return json.dumps(changed).encode()


Command = tuple[str, ...]


def leaves(
    group: click.Group = main, before: Command = ()
) -> Iterator[tuple[Command, click.Command]]:
    """Every command, with the words that name it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from leaves(found, (*before, name))
        else:
            yield (*before, name), found


def words(
    path: Command,
    command: click.Command,
    good: dict[str, str],
    bad: Sequence[str],
    rng: random.Random,
) -> list[str]:
    """A call of a command with one to three wrong options or arguments.

    good: by the name of a parameter, what it needs
    """
    params = [p for p in command.params if p.name not in ("help", "version")]
    wrong = set(rng.sample(range(len(params)), min(len(params), rng.choice((1, 1, 2, 3)))))
    called = list(path)
    for number, param in enumerate(params):
        is_argument = isinstance(param, click.Argument)
        if number in wrong:
            value = bad_value(param, bad, rng)
            if is_argument:
                called += [] if rng.random() < 0.1 else [value]
            elif getattr(param, "is_flag", False):
                called.append(rng.choice((param.opts[0], f"{param.opts[0]}=x")))
            else:
                called += [param.opts[0], value] if rng.random() < 0.95 else [param.opts[0]]
        elif param.name in good:
            called += [good[param.name]] if is_argument else [param.opts[0], good[param.name]]
    if rng.random() < 0.05:
        called.append(rng.choice(("--nonsense", "more", "-z", "--help=3")))
    return called


def bad_value(param: click.Parameter, bad: Sequence[str], rng: random.Random) -> str:
    kind = param.type
    if isinstance(kind, click.types.IntParamType | click.IntRange):
        return rng.choice(INTEGERS)
    if isinstance(kind, click.types.FloatParamType) or "Giga" in type(kind).__name__:
        return rng.choice(NUMBERS)
    if isinstance(kind, click.Choice):
        return rng.choice((*kind.choices, "x", "", "ADAM", *NAMES[:4]))
    return rng.choice(
        (rng.choice(bad), rng.choice(NAMES), rng.choice((*INTEGERS, *NUMBERS, *PRESENT)))
    )


def anything() -> list[Any]:
    """Values of types that no argument, or another one, takes."""
    import numpy as np

    return [
        None, 0, 1, -1, 7, 2**70, 1.5, float("nan"), float("inf"), "", "x", "laptop", b"x",
        [], (), {}, [1], {"x": 1}, object(), len, int, np.zeros(3), np.float32(2), True, {1},
        lambda *a, **k: None,         Path("none.json"), [None], "a\0b",
    ]  # fmt: skip
