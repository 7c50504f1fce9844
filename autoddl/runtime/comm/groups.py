"""Collectives of local tensors in the groups of ranks along mesh axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from ...sbp.layout import TensorSpec
from ...sbp.mesh import Mesh
from ...sbp.work import Evening
from ..backend import Backend, Tensor, dtype_of
from ..jobs.guard import note_collective

T = TypeVar("T")


@dataclass(frozen=True)
class Traffic:
    """One collective that ran: its kind, the axes and the bytes of this rank's input.

    elements: of the input, of `dtype`; more: what the collective was given beside it
    """

    kind: str
    axes: tuple[int, ...]
    bytes: int
    elements: int
    dtype: str
    more: tuple[Any, ...] = ()


Around = Callable[["Call"], list[Tensor]]


@dataclass(frozen=True)
class Call:
    """A collective that a rank of `group` is about to run.

    sizes: elements of each flat tensor that it gives, of `dtype`
    run:   asks the framework for it
    """

    group: Group
    dtype: str
    sizes: Sequence[int]
    run: Callable[[], list[Tensor]]


@dataclass
class Group:
    """The ranks that differ from this one only along `axes`, ascending.

    index:   this rank's place among them
    channel: what the back end needs to know of them; None for a group of one

    All methods take and give local tensors and must be called by every rank of the group.
    """

    axes: tuple[int, ...]
    ranks: tuple[int, ...]
    index: int
    channel: Any
    backend: Backend = field(repr=False)
    groups: Groups = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_gather(self, x: Tensor) -> Tensor:
        """[n] on each rank -> [size * n], in rank order."""
        return self._run_one("all_gather", self.backend.all_gather, x, x.shape[0] * self.size)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """[size * n] on each rank -> the sum's piece [n] that belongs to this rank."""
        return self._run_one(
            "reduce_scatter", self.backend.reduce_scatter, x, x.shape[0] // self.size
        )

    def all_reduce(self, x: Tensor, *, is_own: bool = False) -> Tensor:
        """[...] on each rank -> the sum [...]; is_own: it may be in the memory of x."""
        flat, add = x.reshape(-1), partial(self.backend.all_reduce, is_own=is_own)
        summed = self._run_one("all_reduce", add, flat, flat.shape[0])
        return summed.reshape(x.shape)

    def all_to_all(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Flat pieces of `sizes`, one for each rank -> those from each, of the same sizes."""
        swap = partial(self.backend.all_to_all, sizes=sizes)
        return self._run_one("all_to_all", swap, x, x.shape[0], (tuple(sizes),))

    def _swap(self, x: Tensor) -> Tensor:
        """[size, n]: row j is for rank j -> [size, n]: row i is from rank i."""
        row = x.shape[0] * x.shape[1] // self.size
        return self.all_to_all(x.reshape(-1), [row] * self.size).reshape(x.shape)

    def make_equal(self, piece: Tensor, evening: Evening) -> Tensor:
        """Flat pieces of unequal size -> equal parts, the rest of some of them undefined."""
        backend, mine = self.backend, self.index
        kept = backend.narrow(piece, 0, 0, evening.kept(mine))
        received = evening.received(mine)

        def run() -> list[Tensor]:
            for move in evening.sent(mine):
                self._send(backend.narrow(piece, 0, move.start, move.size), move.target)
            return [self._receive(m.size, m.source, piece) for m in received]

        got = self._run("make_equal", piece, [m.size for m in received], run, (evening,))
        missing = evening.part - sum(int(x.shape[0]) for x in (kept, *got))
        fill = [backend.zeros((missing,), dtype_of(piece))] if missing else []
        return backend.cat([kept, *got, *fill], 0) if got or fill else kept

    def make_unequal(self, part: Tensor, evening: Evening) -> Tensor:
        """The inverse of `make_equal`."""
        backend, mine = self.backend, self.index
        sent = evening.sent(mine)

        def run() -> list[Tensor]:
            for move in evening.received(mine):
                self._send(backend.narrow(part, 0, move.at, move.size), move.source)
            return [self._receive(m.size, m.target, part) for m in sent]

        got = self._run("make_unequal", part, [m.size for m in sent], run, (evening,))
        kept = backend.narrow(part, 0, 0, evening.kept(mine))
        # a beginning by itself: the rest of the part is not held for it
        is_part_of = 0 < kept.shape[0] < part.shape[0]
        return backend.cat([kept, *got], 0) if got or is_part_of else kept

    def _send(self, x: Tensor, to: int) -> None:
        dtype = dtype_of(x)
        carrier = self.backend.facts.sent_as.get(dtype, dtype)
        rank = self.groups.first + self.ranks[to]
        self.backend.send(self.backend.cast(x, carrier), rank, beside=True)

    def _receive(self, size: int, source: int, like: Tensor) -> Tensor:
        dtype = dtype_of(like)
        carrier = self.backend.facts.sent_as.get(dtype, dtype)
        rank = self.groups.first + self.ranks[source]
        return self.backend.cast(self.backend.receive(rank, size, carrier, beside=True), dtype)

    def all_max(self, x: Tensor) -> Tensor:
        """[...] on each rank -> the elementwise maximum [...], with an all-reduce's bytes.

        Back ends reduce sums only: each rank takes the maximum of one piece and all gather them.
        """
        if self.size == 1:
            return x
        flat = x.reshape(-1)
        (n,) = flat.shape
        missing = -n % self.size
        if missing:  # copies of the last element change no maximum
            last = self.backend.narrow(flat, 0, n - 1, 1)
            flat = self.backend.cat([flat, *[last] * missing], 0)
        piece = self.backend.max_of_rows(self._swap(flat.reshape(self.size, -1)))
        return self.backend.narrow(self.all_gather(piece), 0, 0, n).reshape(x.shape)

    def sum_before(self, x: Tensor, *, after: bool = False) -> Tensor:
        """[...] on each rank -> the sum [...] of the ranks before it, or after it.

        It moves an all-reduce's bytes: each rank adds up one piece for all.
        """
        flat = x.reshape(-1)
        (n,) = flat.shape
        missing = -n % self.size
        if missing:
            flat = self.backend.cat([flat, *[self.backend.narrow(flat, 0, 0, 1)] * missing], 0)
        rows = self._swap(flat.reshape(self.size, -1))
        given = [self.backend.narrow(rows, 0, i, 1) for i in range(self.size)]
        sums = [given[0] * 0]
        for row in given[:0:-1] if after else given[:-1]:
            sums.append(sums[-1] + row)
        pieces = self._swap(self.backend.cat(sums[::-1] if after else sums, 0))
        return self.backend.narrow(pieces.reshape(-1), 0, 0, n).reshape(x.shape)

    def _run_one(
        self,
        kind: str,
        collective: Callable[[Any, Tensor], Tensor],
        x: Tensor,
        size: int,
        more: tuple[Any, ...] = (),
    ) -> Tensor:
        """A collective that takes a tensor and gives one, of so many elements."""
        if self.size == 1:
            return x
        (moved,) = self._run(kind, x, [size], lambda: [collective(self.channel, x)], more)
        return moved

    def _run(
        self,
        kind: str,
        given: Tensor,
        sizes: Sequence[int],
        run: Callable[[], list[Tensor]],
        more: tuple[Any, ...] = (),
    ) -> list[Tensor]:
        groups = self.groups
        note_collective(kind, self.ranks, groups.first, groups.why)
        call = Call(self, dtype_of(given), sizes, run)
        if groups.log is not None:
            call = replace(call, run=groups.logged(self._traffic(kind, given, more), run))
        return call.run() if groups.around is None else groups.around(call)

    def _traffic(self, kind: str, given: Tensor, more: tuple[Any, ...]) -> Traffic:
        spec = TensorSpec(tuple(given.shape), dtype_of(given))
        return Traffic(kind, self.axes, spec.bytes, spec.numel, spec.dtype, more)


class Groups:
    """The groups of one rank of a mesh, made once each.

    first: the job's rank that is the mesh's rank 0; a pipeline stage's mesh is a part of the job
    ways:  `Step.way` of other algorithms than the default -> what prepares such a step
    why:    what the collectives that are asked for now are for, for people
    Set `log` to a list to record traffic, `around` to what gives results in place of `Call.run`.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        backend: Backend,
        first: int = 0,
        ways: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        self.mesh = mesh
        self.rank = rank
        self.backend = backend
        self.first = first
        self.ways = ways
        self.log: list[Traffic] | None = None
        self.around: Around | None = None
        self.why = ""
        self._groups: dict[tuple[int, ...], Group] = {}

    @property
    def world(self) -> Group:
        """All ranks of the mesh."""
        return self.along(range(self.mesh.num_axes))

    def along(self, axes: Iterable[int]) -> Group:
        """The group of this rank along `axes`."""
        key = tuple(sorted(set(axes)))
        if key not in self._groups:
            ranks = self.mesh.group(self.rank, key)
            alone = len(ranks) == 1
            channel = None if alone else self.backend.channel([self.first + r for r in ranks])
            self._groups[key] = Group(
                key, ranks, ranks.index(self.rank), channel, self.backend, self
            )
        return self._groups[key]

    def logged(self, traffic: Traffic, run: Callable[[], T]) -> Callable[[], T]:
        """`run` with nothing beside it, put down when its turn comes: in one order on all ranks.

        They are asked for by two threads where some communicate beside computation.
        """
        log, thread = self.log, self.backend.thread

        def noted() -> T:
            assert log is not None
            log.append(traffic)
            result = run()
            self.backend.wait()
            return result

        return noted if thread is None else lambda: thread.in_order(noted)
