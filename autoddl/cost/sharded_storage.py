"""How a trained parameter with one reader is stored: whole, or split by one of ZeRO's stages.

On axes where its reader takes it Broadcast and gives its gradient back Partial, d devices in all, a
parameter of w local bytes with k optimiser slots may be stored split. With M micro-batches it owes,
AG and RS being the seconds of its all-gather and reduce-scatter:

    stage  split                      seconds an iteration    bytes
    0      nothing                    AG + RS (all-reduce)    w (2 + k)
    1      parameter, slots           AG + RS                 w + w/d (1 + k) + w
    2      and gradient               AG + M RS               w + w/d (2 + k)
    3      and what is gathered       2 M AG + M RS           w/d (2 + k)

In stages 1 and 2 the gathered copy stays for the iteration; in stage 3 it is there only while its
operator runs, forward and backward, which only matrix products can do without recomputation (the
others take stage 2). A block that is run again gathers it for that, and keeps it for the backward
pass that follows: it gathers as often as others. Partial axes that are not
split are all-reduced after the reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step, StepKind, step_kind
from ..sbp.layout import TensorSpec, even_bytes, even_bytes_of, num_parts
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp, P, Placement, S
from ..sbp.signature import OpSpec, is_matmul
from .collectives import CommModel
from .model import StepPrice

Codes = NDArray[np.int8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_COLLECTS = step_kind(S(0), B), step_kind(P, S(0))
_SUMS = step_kind(P, B)
_B, _P = B.code, P.code


@dataclass(frozen=True)
class Storage:
    """A stage (0: whole), and the axes over which it may split."""

    stage: int
    axes: tuple[int, ...] = ()


WHOLE = Storage(0)


def storages(mesh: Mesh, micro_batches: int) -> tuple[Storage, ...]:
    """What may be chosen: each stage over all axes, those inside the hosts, those between them.

    Without accumulation stage 1 costs what stage 2 costs, and keeps more.
    """
    every = tuple(range(mesh.num_axes))
    sets = [every]
    sets += [tuple(a for a in every if mesh.axes[a].link == link) for link in ("intra", "inter")]
    stages = (1, 2, 3) if micro_batches > 1 else (2, 3)
    chosen = dict.fromkeys(axes for axes in sets if axes)
    return (WHOLE, *(Storage(stage, axes) for stage in stages for axes in chosen))


def stage_at(op: OpSpec, index: int, stage: int) -> int:
    """The stage that input `index` of the operator takes when `stage` is asked for."""
    forgets = (
        is_matmul(op.kind)
        and index == 1
        and len(op.inputs[1].shape) == 2
        and not op.attrs["transpose_a"]
    )
    return stage if forgets else min(stage, 2)


def chosen_axes(axes: tuple[int, ...], mesh: Mesh) -> Bools:
    """[axis] whether it is one of `axes`."""
    chosen = np.zeros(mesh.num_axes, dtype=bool)
    chosen[list(axes)] = True
    return chosen


def stored_codes(spec: TensorSpec, needed: Codes, given: Codes, chosen: Bools, mesh: Mesh) -> Codes:
    """How parameters are stored that are needed and whose gradients come as in [n, axis] codes.

    Split over those of the chosen axes, of all ([axis]) or of each ([n, axis]), that replicate
    them, along the first dim that divides evenly and of which the pieces follow one another, so
    that they are gathered by one collective; else whole.
    """
    kept = np.where(needed == _P, np.int8(_B), needed)
    split = chosen & (needed == _B) & (given == _P) & ~(needed == _P).any(axis=1)[:, None]
    open_rows = split.any(axis=1)
    first = split.argmax(axis=1)
    before = np.arange(mesh.num_axes) < first[:, None]
    stored = kept.copy()
    trials: list[tuple[Codes, Bools, Bools]] = []  # along each dim, whether it is used, and fits
    for dim in range(len(spec.shape)):
        own, trial = needed == dim, np.where(split, np.int8(dim), kept)
        units = num_parts(trial == dim, mesh.units)
        contiguous = ~(own & ~before).any(axis=1)
        trials.append((trial, own.any(axis=1), contiguous & (spec.shape[dim] % units == 0)))
    # dims that nothing splits first, then those that only axes before the first one split
    for unused in (True, False):
        for trial, is_used, fits in trials:
            rows = open_rows & fits & (is_used != unused)
            stored[rows] = trial[rows]
            open_rows &= ~rows
    return stored


def storage_steps(
    spec: TensorSpec, comm: CommModel, needed: NdSbp, given: NdSbp, stored: NdSbp
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """(gathering, reduction of the gradient) of a parameter stored split."""
    axes = tuple(a for a, (x, y) in enumerate(zip(needed, stored, strict=True)) if x != y)
    dim = stored[axes[0]]
    rest = tuple(a for a, p in enumerate(given) if p.is_partial and a not in axes)
    whole = np.array([even_bytes(spec, needed, comm.mesh)])
    along = np.isin(np.arange(comm.mesh.num_axes), axes)[None]
    gathers, scatters = (
        _runs(along[0], _in_runs(comm, kind, along, whole)[1][0]) for kind in _COLLECTS
    )
    forward = [Step.between(dim, B, run) for run in reversed(gathers)]
    backward = [Step.between(P, dim, run) for run in scatters]
    if rest:
        backward.append(Step.between(P, B, rest))
    return comm.cheapest(spec, stored, forward), comm.cheapest(spec, given, backward)


def _in_runs(comm: CommModel, kind: StepKind, along: Bools, whole: Floats) -> tuple[Floats, Ints]:
    """([n] seconds, [n, axis] where the run ends that begins there) of a collective along axes.

    Of `whole` [n] local bytes gathered `along` [n, axis] all those axes at once or in runs, the
    minor ones first (a reduce-scatter: the major ones first), whatever is cheapest:

        g(i) = min over j > i of  g(j) + price(axes i..j-1) whole / (parts of the axes before i)
    """
    count, axes = along.shape
    masks = _masks(along)
    parts = np.where(along, np.array(comm.mesh.parts), 1.0)
    sizes = whole / (np.cumprod(parts, axis=1) / parts).T
    least = np.zeros((axes + 1, count))
    end = np.zeros((count, axes), dtype=np.int64)
    for i in reversed(range(axes)):
        ends = np.arange(i + 1, axes + 1)
        runs = masks & ((1 << ends) - (1 << i))[:, None]
        tries = np.full(runs.shape, np.inf)
        for way in comm.ways(kind):
            alpha_s, beta_s_per_byte = comm.prices(way, runs)
            np.minimum(tries, least[i + 1 :] + alpha_s + beta_s_per_byte * sizes[i], out=tries)
        least[i] = np.where(along[:, i], tries.min(axis=0), least[i + 1])
        end[:, i] = ends[tries.argmin(axis=0)]
    return least[0], end


def _run_seconds(
    comm: CommModel, kind: StepKind, masks: Ints, sizes: Floats, size_of: Ints
) -> Floats:
    """[n] the seconds of `_in_runs`, of axes as numbers and local bytes `sizes[size_of]`.

    What was asked for before, of any parameter, is known.
    """
    known = [comm.in_runs(kind, size) for size in sizes.tolist()]
    table = np.stack(known)
    found = table[size_of, masks]
    is_new = np.isnan(found)
    if is_new.any():
        which, axes = np.divmod(
            np.unique(size_of[is_new] * table.shape[1] + masks[is_new]), table.shape[1]
        )
        along = (axes[:, None] >> np.arange(comm.mesh.num_axes) & 1).astype(bool)
        table[which, axes] = _in_runs(comm, kind, along, sizes[which])[0]
        for row, own in zip(table, known, strict=True):
            own[:] = row
        found = table[size_of, masks]
    return found


def _runs(along: Bools, end: Ints) -> list[tuple[int, ...]]:
    """The runs of one row of `_in_runs`."""
    runs, i = [], 0
    while along[i:].any():
        i += int(along[i:].argmax())
        runs.append(tuple(a for a in range(i, int(end[i])) if along[a]))
        i = int(end[i])
    return runs


def edge_times(
    is_param: bool, zero_stage: int, micro_batches: int, passes: int = 1
) -> tuple[tuple[int, int], int]:
    """How often an edge's steps run in an iteration.

    passes: forward passes of its reader for each micro-batch
    ((forward steps in forward passes, in backward passes), backward steps)
    """
    if not is_param:
        return (passes * micro_batches, 0), micro_batches
    backward = 0 if passes > 1 else micro_batches  # what was run again is still there
    forward = (passes * micro_batches, backward) if zero_stage == 3 else (1, 0)
    return forward, micro_batches if zero_stage > 1 else 1


@dataclass
class _Split:
    """What the stages share of parameters `stored` [n, axis] split.

    rows:      [n] whether any axis is split in storage and Broadcast in use
    held:      [n] bytes of a piece that count as memory
    collect_s: [2, n] seconds of the all-gather, and of the reduce-scatter with the all-reduce over
               axes that are not split; None until they are asked for
    """

    stored: Codes
    rows: Bools
    held: Floats
    collect_s: Floats | None = None

    def some(self, rows: Ints) -> _Split:
        """For these strategies only."""
        collect_s = None if self.collect_s is None else self.collect_s[:, rows]
        return _Split(self.stored[rows], self.rows[rows], self.held[rows], collect_s)


@dataclass(frozen=True)
class StoragePrices:
    """Seconds and bytes of one parameter under the storages, for n strategies of its reader.

    memory_mesh: as the fullest devices see it (`CostModel.memory_mesh`)
    copies: tensors of the parameter's size: weight, gradient, optimiser slots
    """

    spec: TensorSpec
    comm: CommModel
    memory_mesh: Mesh
    copies: int
    needed: Codes
    given: Codes
    _splits: dict[bytes, _Split] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def some(self, rows: Ints) -> StoragePrices:
        """For these strategies only."""
        found = replace(self, needed=self.needed[rows], given=self.given[rows])
        splits = [split.some(rows) for split in self._splits.values()]
        found._splits.update({split.stored.tobytes(): split for split in splits})
        return found

    def stored(self, chosen: Bools) -> Codes:
        """[n, axis] placements if split over chosen axes, [axis] of all or [n, axis] of each."""
        return stored_codes(self.spec, self.needed, self.given, chosen, self.comm.mesh)

    def memory_bytes(self, stage: int, stored: Codes, held: float) -> Floats:
        """[n] of weight, gradient, optimiser slots and, so much as it is `held`, gathered copy."""
        split = self._split(stored)
        memory = self.copies * split.held
        memory += held * np.where(split.rows, self._whole_held, 0.0)
        if stage == 1:
            memory += self._whole_held - split.held
        return memory

    def seconds(
        self,
        stage: int,
        stored: Codes,
        micro_batches: int,
        whole_s: Floats,
        passes: int = 1,
        price: StepPrice | None = None,
        late: float = 0.0,
    ) -> Floats:
        """[n] an iteration; rows that are not split cost `whole_s`, and the others no less.

        passes: forward passes of the reader for each micro-batch
        price:  of a second of what may be hidden: of reductions, and of stage 3's gathers
        late:   of a second of the last reduction, besides
        """
        split = self._split(stored)
        if not split.rows.any():
            return whole_s
        forward, sums = edge_times(True, stage, micro_batches, passes)
        gathers, reductions = float(sum(forward)), float(sums)
        if price is not None:
            gathers = price.often(gathers) if stage == 3 else gathers
            reductions = price.often(reductions) + late + price.after * (stage < 2)
        if split.collect_s is None:
            split.collect_s = self._collected(split)
        gather_s, reduce_s = split.collect_s
        found = gathers * gather_s + reductions * reduce_s
        return np.where(split.rows, np.maximum(found, whole_s), whole_s)

    def _split(self, stored: Codes) -> _Split:
        """What the stages share."""
        key = stored.tobytes()
        if key not in self._splits:
            rows = self._gathered(stored).any(axis=1)
            self._splits[key] = _Split(stored, rows, self._held(stored))
        return self._splits[key]

    def _gathered(self, stored: Codes) -> Bools:
        """[n, axis] where it is split in storage and Broadcast in use."""
        return (stored >= 0) & (self.needed == _B)

    def _collected(self, split: _Split) -> Floats:
        """Seconds of the gathers, and of the reductions of the gradients."""
        rows, stored = split.rows, split.stored[split.rows]
        gathered = self._gathered(split.stored)[rows]
        masks = _masks(gathered)
        sizes, size_of = np.unique(self._whole[rows], return_inverse=True)
        gather_s, scatter_s = (
            _run_seconds(self.comm, kind, masks, sizes, size_of) for kind in _COLLECTS
        )
        rest, pieces = _masks((self.given[rows] == _P) & ~gathered), self._bytes(stored)
        reduce_s = np.full(len(rest), np.inf)
        for way in self.comm.ways(_SUMS):
            alpha_s, beta_s_per_byte = self.comm.prices(way, rest)
            np.minimum(reduce_s, scatter_s + alpha_s + beta_s_per_byte * pieces, out=reduce_s)
        found = np.zeros((2, len(rows)))
        found[:, rows] = gather_s, reduce_s
        return found

    @cached_property
    def _whole(self) -> Floats:
        """[n] bytes of what its reader takes."""
        return self._bytes(self.needed)

    @cached_property
    def _whole_held(self) -> Floats:
        return self._held(self.needed)

    def _bytes(self, codes: Codes) -> Floats:
        return even_bytes_of(self.spec, codes, self.comm.mesh)

    def _held(self, codes: Codes) -> Floats:
        """What counts as memory."""
        is_same = self.memory_mesh.parts == self.comm.mesh.parts
        return self._bytes(codes) if is_same else even_bytes_of(self.spec, codes, self.memory_mesh)


def _masks(along: Bools) -> Ints:
    """Each row of axes as a number; axis a is bit a."""
    return along @ (1 << np.arange(along.shape[1], dtype=np.int64))


# ---- a plan whose parameters are stored so

_Stored = tuple[NdSbp, tuple[Step, ...], tuple[Step, ...]]  # how stored, gathered, and reduced


def stored_placement(placement: Placement) -> Placement:
    """How a parameter is kept that an operator takes in `placement`: never Partial."""
    return B if placement.is_partial else placement


def split_storage(
    graph: Graph,
    comm: CommModel,
    storage: Mapping[str, Storage],
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
    """The placed plan with its trained parameters of one use stored as `storage` says."""
    placed, steps = dict(ops), dict(edges)
    splits: dict[Hashable, tuple[_Stored | None, int]] = {}  # equal blocks have the same ones
    for op in graph.params:
        (tensor,) = op.outputs
        chosen, uses = storage.get(tensor, WHOLE), graph.consumers[tensor]
        if chosen.stage == 0 or len(uses) != 1 or tensor not in graph.needs_grad:
            continue
        (user, index), spec = uses[0], graph.tensors[tensor].spec
        needed, given = ops[user.name].ins[index], ops[user.name].grad_ins[index]
        assert given is not None
        key = graph.alike[user.name], index, needed, given, chosen
        if key not in splits:
            stage = stage_at(graph.spec(user), index, chosen.stage)
            splits[key] = _split(comm, spec, needed, given, chosen.axes), stage
        split, stage = splits[key]
        if split is None or split[0] == ops[op.name].outs[0]:
            continue
        stored, forward, backward = split
        placed[op.name] = PlannedOp((), (stored,), (stored,), ())
        steps[user.name, index] = PlannedEdge(user.name, index, forward, backward, stage)
    return placed, steps


def _split(
    comm: CommModel, spec: TensorSpec, needed: NdSbp, given: NdSbp, axes: tuple[int, ...]
) -> _Stored | None:
    """None if nothing can be split over these axes."""
    chosen = chosen_axes(axes, comm.mesh)
    codes = stored_codes(spec, needed.codes[None], given.codes[None], chosen, comm.mesh)
    stored = NdSbp.from_codes(codes[0])
    if stored == NdSbp(tuple(map(stored_placement, needed))):
        return None
    return stored, *storage_steps(spec, comm, needed, given, stored)
