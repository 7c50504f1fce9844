"""What a back end's programs hold of a planned step: the interface, and how rules are found.

A rule of `sbp` says what an operator's gradient needs (`Rule.saves`, `Rule.beside`). What a back
end really keeps, copies and needs meanwhile is its own, and so is the memory of a step that its
compiler makes. The back end NAME states both in `runtime/NAME/memory/rules.py`, a module that is
itself a `MemoryRules`. It must not import the back end's libraries, as plans are also made where
these are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

from ..graph.placed import PlannedOp
from ..sbp.signature import OpSpec
from .collectives import Travel
from .step_tensors import OpPullback, PlannedStep
from .tape import Peak


class OperatorMemory(Protocol):
    """What the operators of a program hold beside their inputs and outputs; bytes are local."""

    def saves(self, kind: str) -> str:
        """Which inputs and outputs an operator's backward pass reads, as `Rule.saves` has it."""
        ...

    def kept_bytes(
        self,
        op: OpSpec,
        planned: PlannedOp,
        ins: Sequence[float],
        outs: Sequence[float],
        copies: Sequence[float],
    ) -> float:
        """Bytes that the forward pass keeps for the backward pass beside inputs and outputs.

        copies: bytes that it takes to make each input contiguous
        """
        ...

    def workspace_bytes(self, op: OpSpec, ins: Sequence[float], copies: Sequence[float]) -> float:
        """Bytes that the forward pass needs only while it runs."""
        ...

    def moving_bytes(self, travel: Travel) -> float:
        """Bytes that are there only while a tensor travels (`collectives.workspace_while`)."""
        ...

    def pull_back(self, op: OpPullback) -> None:
        """Append the backward pass of an operator to the tape of its step."""
        ...


class MemoryRules(Protocol):
    """What operators of one back end hold in autoddl's executor, and the step it compiles."""

    @property
    def operators(self) -> OperatorMemory: ...

    def compiles(self, plan: PlannedStep) -> bool:
        """Whether the back end's compiler takes the placements of the step."""
        ...

    def compiled_peak(self, plan: PlannedStep) -> Peak:
        """The peak of the compiled step."""
        ...

    def compiled_bytes(self, plan: PlannedStep, enough: int = 0) -> int:
        """The bytes of that peak that count for the memory limit: with what it may be off.

        enough: so few need not be the least
        """
        ...


def rules_of(back_end: str) -> MemoryRules:
    """The rules of a back end by its name, imported when they are first asked for.

    ValueError if there is no such back end.
    """
    home = f"autoddl.runtime.{back_end}.memory"
    try:
        known = back_end.isidentifier() and importlib.util.find_spec(home) is not None
    except ModuleNotFoundError:
        known = False
    if not known:
        raise ValueError(f"unknown back end {back_end!r}; autoddl comes with 'oneflow' and 'torch'")
    found: Any = importlib.import_module(f"{home}.rules")
    return found
