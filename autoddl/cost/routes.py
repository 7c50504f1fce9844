"""The ways of a tensor from placement to placement, by the steps of a plan.

OneFlow's compiler makes one way of them, autoddl's executor takes them as they are planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sbp.collectives import Step, placed_after
from ..sbp.placement import B, NdSbp

Way = tuple[str, NdSbp, NdSbp]  # kind, placement before, placement after


def planned_route(source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
    """The executor's."""
    route: list[Way] = []
    for step in steps:
        after = step.apply(source)
        route.append((step.kind, source, after))
        source = after
    return tuple(route)


def compiled_route(source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
    """The compiler's.

    What becomes Partial is whole on these axes first, and then goes through the host.
    """
    target = placed_after(source, steps)
    pairs = zip(source, target, strict=True)
    whole = NdSbp(tuple(B if t.is_partial and s.is_split else s for s, t in pairs))
    if whole != source:
        return ("all_gather", source, whole), ("to_partial", whole, target)
    kinds = dict.fromkeys(step.kind for step in steps)
    return (("/".join(kinds), source, target),)
