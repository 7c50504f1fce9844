"""Finds submodules that hold operators that autoddl cannot plan or run, and so become opaque."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from .canonical import kept_outputs
from .job.raw import RawOp
from .job.recorder import LOSS, Call

SOURCES = ("input_conf", "variable_conf")


def path_of(calls: Sequence[Call], call: int) -> str:
    """Path of the module of `call`; everything that the loss calls counts as the loss."""
    root = call
    while calls[root].parent >= 0:
        root = calls[root].parent
    return LOSS if calls[root].path == LOSS else calls[call].path


def unknown_operators(
    ops: Sequence[RawOp],
    calls: Sequence[Call],
    roots: Collection[str],
    known: Callable[[str], bool],
) -> dict[str, str]:
    """Path of the smallest submodule -> what in it cannot be planned."""
    read = {name for op in ops for name in op.reads} | set(roots)
    found: dict[str, str] = {}
    for op in ops:
        if op.kind in SOURCES or op.kind == "opaque":
            continue
        surplus = set(op.makes) - set(kept_outputs(op))
        if not known(op.kind):
            reason = f"operator {op.kind}"
        elif surplus & read:
            reason = f"a secondary output of operator {op.kind}"
        else:
            continue
        found.setdefault(path_of(calls, op.call), reason)
    return found


def rewriting_modules(
    ops: Sequence[RawOp], calls: Sequence[Call], rewritten: Mapping[str, str]
) -> dict[str, str]:
    """Path of the smallest submodule that changes a parameter or buffer -> which one.

    The graph cannot represent such a change; inside an opaque submodule it is simply executed.
    """
    makers = {name: op for op in ops for name in op.makes}
    found: dict[str, str] = {}
    for state, value in rewritten.items():
        maker = makers.get(value)
        if maker is not None:
            owner = state.rpartition(".")[0]
            path = owner if maker.kind in SOURCES else path_of(calls, maker.call)
            found.setdefault(path, f"a change of {state} in its forward")
    return found
