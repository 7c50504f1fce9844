"""A stage's list with each transfer as early as its queue allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .action import Action

_MAKES = {"SF": "F", "SB": "B"}  # a send and the pass that computes what it sends


def hoisted(
    actions: Sequence[Action], joint: bool, meets: Callable[[Action], bool] = lambda action: False
) -> list[Action]:
    """The same computation and the same transfers, each in its order; transfers go first.

    A computation that holds up the thread that issues everything, as an emulated one does, would
    else hold up transfers that could run beside it.

    joint: gradients leave after both halves
    meets: true of a pass in which the stage's devices communicate; no transfer goes before it, as
           a collective would wait behind one whose sender is not ready
    """
    order: list[Action] = []
    done: set[tuple[str, int, int]] = set()
    start = 0
    for end, action in enumerate(actions, 1):
        if end == len(actions) or (action.is_compute and meets(action)):
            order += _first(actions[start:end], joint, done)
            start = end
    return order


def _first(actions: Sequence[Action], joint: bool, done: set[tuple[str, int, int]]) -> list[Action]:
    """The transfers first, as far as the passes that are done make what they send."""
    queue = [a for a in actions if not a.is_compute]
    order: list[Action] = []
    at = 0
    for action in (*(a for a in actions if a.is_compute), None):
        while at < len(queue):
            made = _MAKES.get(queue[at].kind, "")
            made = "W" if made == "B" and joint else made
            if made and (made, queue[at].micro_batch, queue[at].chunk) not in done:
                break
            order.append(queue[at])
            at += 1
        if action is not None:
            order.append(action)
            done.add((action.kind, action.micro_batch, action.chunk))
    return order
