"""One step of a redistribution: a collective, or a free local change, along mesh axes.

A step changes the label `source` to `target` on `axes`, which act as one group in row-major order.
A split of one dim over several axes is nested, the earlier axis outermost, so a step is one
collective only if

- the axes that lose S(d) are the last (minor-most) of those that split d, and
- the axes that gain S(d) come after all other axes that split d.

Both say: no axis outside the step that comes after its first axis splits d. Then each group holds,
in rank order, the consecutive pieces of one range of d, even or uneven (balanced).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from .placement import B, NdSbp, P, Placement, S

StepKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "to_partial"
]
STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
FREE_KINDS: frozenset[StepKind] = frozenset({"slice", "to_partial"})


def step_kind(source: Placement, target: Placement) -> StepKind:
    """The kind of step that turns `source` into `target`, two different placements."""
    assert source != target, f"no step turns {source} into itself"
    if target.is_partial:
        return "to_partial"
    if source.is_partial:
        return "all_reduce" if target.is_broadcast else "reduce_scatter"
    if source.is_broadcast:
        return "slice"
    return "all_gather" if target.is_broadcast else "all_to_all"


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or one free local step, in the groups along `axes`.

    The axes carry `source` before and `target` after it:
    all_gather S -> B, reduce_scatter P -> S, all_reduce P -> B, all_to_all S -> S', slice B -> S
    (local), to_partial B -> P or S -> P (local: the first device keeps, or pads with zeros).
    """

    kind: StepKind
    axes: tuple[int, ...]
    source: Placement
    target: Placement
    _hash: int = field(init=False, repr=False, compare=False)  # paths are often looked up

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.axes, self.source, self.target)))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def parse(text: str) -> Step:
        """The inverse of `str`, e.g. `all_gather[0,1] S0->B`. ValueError on anything else."""
        match = re.fullmatch(r"\s*(\w+)\[(\d+(?:,\d+)*)\] (\w+)->(\w+)\s*", text)
        if match is None:
            raise ValueError(f"{text!r} is not a step; expected e.g. 'all_gather[0,1] S0->B'")
        kind, axes, source, target = match.groups()
        placements = Placement.parse(source), Placement.parse(target)
        if placements[0] == placements[1] or kind != step_kind(*placements):
            raise ValueError(f"{text!r} is not a step: {kind} does not turn {source} into {target}")
        return Step(step_kind(*placements), tuple(map(int, axes.split(","))), *placements)

    @property
    def is_free(self) -> bool:
        """True if no device sends anything."""
        return self.kind in FREE_KINDS

    def apply(self, nd: NdSbp) -> NdSbp:
        """The placement after the step."""
        assert all(nd[a] == self.source for a in self.axes), f"{self} does not start at {nd}"
        return nd.replace(self.axes, self.target)

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.axes))}] {self.source}->{self.target}"

    __repr__ = __str__


def is_legal(step: Step, nd: NdSbp) -> bool:
    """True if `step` is one collective (or local) when the tensor is placed as `nd`."""
    if not step.axes or step.axes != tuple(sorted(set(step.axes))) or step.source == step.target:
        return False
    if step.kind != step_kind(step.source, step.target):
        return False
    if any(a >= len(nd) or nd[a] != step.source for a in step.axes):
        return False
    later = [nd[a] for a in range(step.axes[0] + 1, len(nd)) if a not in step.axes]
    return not any(p.is_split and p in (step.source, step.target) for p in later)


def legal_steps(nd: NdSbp, ndim: int) -> Iterator[Step]:
    """All legal steps from `nd` for a tensor of `ndim` dims: the definition, one by one."""
    labels = (P, B, *map(S, range(ndim)))
    for size in range(1, len(nd) + 1):
        for axes in itertools.combinations(range(len(nd)), size):
            for target in labels:
                if target != nd[axes[0]]:
                    step = Step(step_kind(nd[axes[0]], target), axes, nd[axes[0]], target)
                    if is_legal(step, nd):
                        yield step


def placed_after(nd: NdSbp, steps: Sequence[Step]) -> NdSbp:
    """The placement `nd` after `steps`."""
    for step in steps:
        nd = step.apply(nd)
    return nd
