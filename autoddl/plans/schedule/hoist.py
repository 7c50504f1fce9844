"""Moves each transfer of a stage as early as its queue allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .orders import Action

_MAKES = {"SF": "F", "SB": "B"}  # a send and the pass that computes what it sends


def hoisted(
    actions: Sequence[Action], joint: bool, meets: Callable[[Action], bool] = lambda action: False
) -> list[Action]:
    """The same computation and the same transfers, each in unchanged order, transfers first.

    Where one thread issues everything, a computation that blocks this thread, as an emulated one
    does, would otherwise delay transfers that could run in parallel to it.

    joint: gradients are sent after both halves of the backward pass
    meets: true of a pass in which the stage's devices communicate; no transfer moves before it, as
           the collective would wait behind a transfer whose sender is not ready
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
    """The transfers that can go now, given the passes that are done."""
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
