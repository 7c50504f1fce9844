"""Gradients of parameters: summed over micro-batches where they arise, then brought home.

They leave while the backward pass goes on, in the plan's buckets: small ones that take the same way
together, as one flat tensor.

Gradients are added up in place, in a tensor that nobody else holds: the first one where it is known
to be such, else, as an operator may give one tensor as the gradient of several inputs, a new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from ..backend import Backend, Tensor
from ..comm.beside import later
from .buckets import Bucket
from .program import Edge, Key, Node, Program

SumKey = TypeVar("SumKey", bound=Hashable)


@dataclass
class Accumulated(Generic[SumKey]):
    """`own`: the keys whose sums nobody else holds."""

    sums: dict[SumKey, Tensor] = field(default_factory=dict)
    own: set[SumKey] = field(default_factory=set)

    def add(self, key: SumKey, gradient: Tensor, is_own: bool = False) -> None:
        """Add a gradient, which stays as it is unless nobody else holds it, as `is_own` says."""
        if key in self.own:
            self.sums[key] += gradient  # in place
        elif key in self.sums:
            self.sums[key] = self.sums[key] + gradient
            self.own.add(key)
        else:
            self.sums[key] = gradient
            if is_own:
                self.own.add(key)

    def pop(self, key: SumKey) -> Tensor:
        """The sum, which is then forgotten."""
        self.own.discard(key)
        return self.sums.pop(key)


class Gradients:
    """A step's gradients of the uses of parameters in `program`, on their way home.

    buckets: uses whose gradients travel together, in the order in which they leave: when the last
             micro-batch has given all of them, and the buckets before have left. The gradients of
             all other uses travel when the last pass is over, as do all of a pipeline stage for
             whose gradients others wait
    late:    use -> behind which operator's backward pass its gradient leaves, if it waits
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        buckets: Sequence[Bucket] = (),
        late: Mapping[Key, str] | None = None,
    ) -> None:
        self._program = program
        self._late = late or {}
        self._behind: dict[str, list[Key]] = {}  # in the order in which they leave
        for key, name in self._late.items():
            self._behind.setdefault(name, []).append(key)
        self._backend = backend
        self._buckets = buckets
        self._place = {e.key: n for n, bucket in enumerate(buckets) for e in bucket.edges}
        self._times = Counter(edge.source.attrs["name"] for edge in program.uses)
        self.begin(1)

    def begin(self, micro_batches: int) -> None:
        """Start a step, in which each use gets so many gradients."""
        self._sums: Accumulated[Key] = Accumulated()
        self._arrived: dict[Key, Tensor] = {}
        self._coming: list[tuple[Bucket, Callable[[], list[Tensor]]]] = []
        self._often: list[Callable[[], None]] = []
        self._left = Counter({edge.key: micro_batches for edge in self._program.uses})
        self._missing = [len(bucket.edges) for bucket in self._buckets]
        self._waits = {self._place[key] for key in self._late if key in self._place}
        self._held: dict[Key, tuple[Edge, Tensor]] = {}
        self._next = 0

    def add(self, edge: Edge, gradient: Tensor) -> None:
        """Add the gradient of one use, from ZeRO's stage 2 on where it is stored."""
        key = edge.key
        if edge.zero_stage > 1:
            if key in self._late:
                self._let_go(key)  # of a pass before, of which all else waits, too
                self._held[key] = edge, gradient
            else:
                self._reduce(edge, gradient)
        else:
            self._sums.add(key, gradient, edge.gives_own)
        self._left[key] -= 1
        if not self._left[key] and key in self._place:
            self._missing[self._place[key]] -= 1

    def _reduce(self, edge: Edge, gradient: Tensor) -> None:
        self._often.append(
            later(self._backend.thread, partial(self._add_where_stored, edge, gradient))
        )

    def _add_where_stored(self, edge: Edge, gradient: Tensor) -> None:
        with self._backend.beside():  # what computes next does not wait until it is there
            self._sums.add(edge.key, edge.backward(gradient))

    def leave(self, node: Node | None = None) -> None:
        """Send off the buckets that are full; what they bring is waited for where it is used.

        node: whose backward pass is over, which some have waited for
        """
        for key in self._behind.get(node.begins, ()) if node is not None else ():
            self._let_go(key)
        if not self._program.graph.gives_back:
            self._leave()

    def end_pass(self) -> None:
        """Nothing waits longer than a backward pass lasts."""
        for key in self._late:
            self._let_go(key)

    def _let_go(self, key: Key) -> None:
        """What has waited long enough, if this is the last micro-batch or it travels for each."""
        if key in self._held:
            self._reduce(*self._held.pop(key))
        elif key in self._place and not self._missing[self._place[key]]:
            self._waits.discard(self._place[key])

    def _leave(self) -> None:
        while (
            self._next < len(self._buckets)
            and not self._missing[self._next]
            and self._next not in self._waits
        ):
            bucket = self._buckets[self._next]
            self._next += 1
            packed = bucket.packed([self._sums.pop(edge.key) for edge in bucket.edges])
            bring = later(self._backend.thread, partial(bucket.bring, packed))
            self._coming.append((bucket, bring))

    def home(self, give: Callable[[str, Tensor, bool], None]) -> None:
        """Bring the sums of all uses to their parameters, and `give` each parameter its gradient.

        The last argument of `give` says whether nobody else has that tensor's memory.
        """
        self.end_pass()
        self._leave()
        assert self._next == len(self._buckets), "a bucket of gradients has not left"
        for wait in self._often:
            wait()
        for bucket, brought in self._coming:
            self._arrived.update(zip((e.key for e in bucket.edges), brought(), strict=True))
        self._often, self._coming = [], []
        left = self._times.copy()
        sums: dict[str, Tensor] = {}
        for edge in self._program.uses:
            name, is_own = edge.source.attrs["name"], edge.gives_own or edge.key in self._sums.own
            if edge.key in self._arrived:
                arrived, is_own = self._arrived.pop(edge.key), True
            else:
                gradient = self._sums.pop(edge.key)
                arrived = gradient if edge.zero_stage > 1 else edge.backward(gradient)
                del gradient
            is_own = is_own or name in sums
            sums[name] = sums[name] + arrived if name in sums else arrived
            del arrived
            left[name] -= 1
            if not left[name]:
                give(name, sums.pop(name), is_own)
