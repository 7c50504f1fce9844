"""The order in which OneFlow's compiler runs a tape's actions.

A job with collectives runs breadth first: what is ready is appended to a queue, the readers of an
action's results last made first. A collective that no operator asked for, of a parameter's gradient
on its way to the update, does not queue: it runs just before its reader. Nor does an addition to
what other micro-batches gave: it runs as soon as it can. A job without any collectives takes, of
what is ready, the action that adds the least memory: the bytes it makes less its share of those it
reads (OneFlow's straighten algorithm, "MemoryFirst").
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .....cost.tape import Action, Tape


def compiled_order(tape: Tape) -> Tape:
    """`tape` with its actions in the compiler's order."""
    graph = _Dependencies.of(tape)
    if any(action.travels for action in tape.actions):
        order = _breadth_first(graph)
    else:
        order = _least_memory_first(graph)
    return Tape([tape.actions[n] for n in order], tape.views, tape.kept, tape.always)


@dataclass(frozen=True)
class _Dependencies:
    """Who reads what: actions by number, each with those before and after it."""

    tape: Tape
    actions: Sequence[Action]
    before: list[list[int]]
    after: list[list[int]]

    @staticmethod
    def of(tape: Tape) -> _Dependencies:
        maker = {key: n for n, a in enumerate(tape.actions) for key, _, _ in a.makes}
        before: list[list[int]] = []
        after: list[list[int]] = [[] for _ in tape.actions]
        for number, action in enumerate(tape.actions):
            sources = dict.fromkeys(
                maker[root] for key in action.reads if (root := tape.root(key)) in maker
            )
            before.append([s for s in sources if s != number])
            for source in before[-1]:
                after[source].append(number)
        return _Dependencies(tape, tape.actions, before, after)


def _breadth_first(graph: _Dependencies) -> list[int]:
    """Implied transfers do not queue: their readers wait for what they send."""
    waiting = [len(sources) for sources in graph.before]
    queue = deque(n for n, count in enumerate(waiting) if not count)
    order: list[int] = []
    done = [False] * len(waiting)

    def finish(number: int) -> None:
        for reader in reversed(graph.after[number]):
            waiting[reader] -= 1
            if waiting[reader]:
                continue
            transfer = graph.actions[reader].transfer
            if transfer == "implied":
                finish(reader)
            elif transfer == "added":
                run(reader)
            else:
                queue.append(reader)

    def run(number: int) -> None:
        """With the transfers that it reads and that have not run yet."""
        for source in graph.before[number]:
            if graph.actions[source].transfer == "implied" and not done[source]:
                run(source)
        done[number] = True
        order.append(number)

    while queue:
        number = queue.popleft()
        run(number)
        finish(number)
    order += [n for n, over in enumerate(done) if not over]  # transfers that nobody reads
    return order


def _least_memory_first(graph: _Dependencies) -> list[int]:
    readers: dict[str, int] = {}
    size: dict[str, int] = {}
    for action in graph.actions:
        for key in action.reads:
            readers[graph.tape.root(key)] = readers.get(graph.tape.root(key), 0) + 1
        for key, count, _ in action.makes:
            size[key] = count

    def increment(action: Action) -> float:
        made = sum(count for _, count, _ in action.makes) + action.workspace
        roots = (graph.tape.root(key) for key in action.reads)
        return made - sum(size[root] / readers[root] for root in roots if root in size)

    waiting = [len(sources) for sources in graph.before]
    ready = [(increment(graph.actions[n]), n) for n, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for reader in graph.after[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (increment(graph.actions[reader]), reader))
    assert len(order) == len(waiting), "the tape's actions wait for each other"
    return order
