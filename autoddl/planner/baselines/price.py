"""All baselines priced on one graph and cluster, each with its best topology.

`BaselinePricer` tries every family of `families.py` on every topology, with as few micro-batches
as its memory allows, and searches what the scheme leaves open (where light operators run, which
redistributions) to 0.05 % of the optimum, as near as our own plans. Where memory binds, it tries
the same with the model's repeated blocks run again before their backward pass, and keeps the
faster. The prices are those of the search, so a baseline and a searched plan are compared by one
ruler. Of a family the topologies that cannot be the fastest are not solved whole (`fastest`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...cost.liveness import required_bytes
from ...cost.model import CostModel
from ...cost.recompute import Blocks, Checkpointing
from ...cost.step_tensors import PlannedStep
from ...cost.storage import Storage
from ...graph.placed import PlannedBaseline, PlannedEdge, PlannedOp
from ...sbp.mesh import Mesh
from ...sbp.redistribute import PathTable
from ...search.algorithms import find_algorithm
from ...search.budget import Budget
from ...search.elimination import free_bound
from ...search.exact import may_fit
from ...search.problem import Choice, Problem
from ..placements import place, split_storage
from ..tables.micro_batches import MicroBatches
from ..tables.tables import Tables
from .coarse import CoarsePrices
from .families import FAMILIES, Family, Variant, variants
from .fastest import fastest
from .tables import GroupRows, Rows, SchemeTables, least_memories

_TIGHTENINGS = 4  # of a topology in one number of micro-batches
_GAP = 5e-4  # at most so much above the scheme's optimum where memory binds
_ROUGH = 0.05  # to tell which topology may be the fastest
_CLEARLY = 0.03  # less memory
_SURE = 0.5  # of the limit: no fullest moment is so far above the sum


@dataclass(frozen=True)
class Baseline:
    """A family at its best: what the plan records of it, and how to write it down as a plan.

    tables, choice, variant, paths: None if no topology of the family fits
    least_s: seconds that no plan of the topology falls below
    storage: of each parameter of one reader, by its tensor
    paths:   of the model's mesh and prices
    """

    record: PlannedBaseline
    variant: Variant | None = None
    tables: Tables | None = None
    choice: Choice | None = None
    storage: Mapping[str, Storage] = field(default_factory=dict)
    paths: PathTable | None = None
    least_s: float = 0.0

    @cached_property
    def excess_bytes(self) -> float:
        """By how much a step's fullest moment exceeds the limit. Only of a baseline that fits.

        Of a stage of a pipeline only the sum of its memory is known, which fits.
        """
        assert self.tables is not None
        model, graph = self.tables.model, self.tables.grouping.graph
        if graph.is_stage:
            return 0.0
        mesh, parts, again = model.cluster.mesh, self.tables.micro_batches, self.tables.again
        step = PlannedStep(graph, mesh, parts, model.optimizer, *self.placed, again)
        return required_bytes(step, model.memory_rules, model.limit_bytes) - model.limit_bytes

    @property
    def needed_bytes(self) -> float:
        """Of a device, at the fullest moment. Only of a baseline that fits."""
        assert self.tables is not None and self.record.memory_bytes is not None
        limit = self.tables.model.limit_bytes
        return max(self.record.memory_bytes, limit + self.excess_bytes)

    @property
    def is_fastest(self) -> bool:
        """Of its topology, as far as is of interest."""
        return self.seconds <= self.least_s * (1 + _GAP)

    @property
    def seconds(self) -> float:
        """Of an iteration; inf if the baseline does not fit."""
        found = self.record.iteration_s
        return float("inf") if found is None else found

    @cached_property
    def placed(
        self,
    ) -> tuple[Mapping[str, PlannedOp], Mapping[tuple[str, int], PlannedEdge]]:
        """The placements of operators and the steps between them. Only of a baseline that fits."""
        assert self.variant is not None and self.tables is not None and self.choice is not None
        ops, edges = place(self.tables, self.choice, self.paths)
        comm = self.tables.model.comm
        return split_storage(self.tables.grouping.graph, comm, self.storage, ops, edges)


def tried_again(blocks: Blocks, checkpointing: Checkpointing) -> tuple[Blocks, ...]:
    """What a pricer tries to run again: nothing, or all of `blocks`, or one and the other."""
    if not blocks or checkpointing == "none":
        return ((),)
    return (blocks,) if checkpointing == "all" else ((), blocks)


@dataclass(frozen=True)
class _Way:
    """A topology in `parts` micro-batches; lowered: how often its limit has been."""

    variant: Variant
    parts: int
    blocks: Blocks
    limit: float
    lowered: int = 0


@dataclass(frozen=True)
class BaselinePricer:
    """Prices the baselines of a graph under `model`.

    counts: numbers of micro-batches to try, ascending
    again: what is run again, one or the other; the names are the same at any number
    families: what to try
    """

    micro: MicroBatches
    counts: Sequence[int]
    model: CostModel
    seed: int = 0
    again: Sequence[Blocks] = ((),)
    families: Sequence[Family] = FAMILIES

    def all(self) -> tuple[Baseline, ...]:
        """Every family at its best, in their order; none on one device."""
        if self._mesh.num_axes == 0:
            return ()
        tried = {family: variants(family, self._mesh) for family in self.families}
        return tuple(self._best(family, found) for family, found in tried.items() if found)

    def smallest(self, below_bytes: float) -> Baseline | None:
        """What needs the least, by lower and lower limits, if that is below so many bytes.

        Only of schemes that store parameters whole: the others' storages the search has, too.
        """
        families = [family for family in self.families if not family.split_stored]
        least: Baseline | None = None
        while True:
            model = replace(self.model, memory_limit_bytes=below_bytes * (1 - _CLEARLY))
            found = replace(self, model=model, families=families).all()
            fitting = [baseline for baseline in found if baseline.record.fits]
            if not fitting:
                return least
            least = min(fitting, key=lambda baseline: baseline.needed_bytes)
            below_bytes = least.needed_bytes

    def _best(self, family: Family, found: Sequence[Variant]) -> Baseline:
        ways, best = self._ways(found, self.again[0]), None
        if len(self.again) == 1 or any(own[0].parts == self.counts[0] for own in ways if own):
            best = self._fastest(ways)
        for blocks in self.again[1:]:
            if best is None or best.record.micro_batches > self.counts[0]:
                ways += self._ways(found, blocks)
                best = self._fastest(ways)
        return best or self._smallest_of(family, found, self.again[-1])

    def _ways(self, found: Sequence[Variant], blocks: Blocks) -> list[list[_Way]]:
        """Of each topology that divides the batch, in as many micro-batches as its memory takes."""
        limit, every = self.model.limit_bytes, []
        for variant in found:
            counts = self._divided(variant)
            if not counts:
                continue
            first = [self._tables(counts[0], blocks)]
            if least_memories(first, counts[:1], variant)[0] > limit:
                needed = least_memories(self._known(blocks)[: len(counts)], counts, variant)
                counts = tuple(n for n, size in zip(counts, needed, strict=True) if size <= limit)
            every.append([_Way(variant, parts, blocks, limit) for parts in counts])
        return every

    def _smallest_of(self, family: Family, found: Sequence[Variant], blocks: Blocks) -> Baseline:
        """What is told of a family that does not fit: about what it needs."""
        least: list[tuple[float, int, Variant]] = []  # bytes, micro-batches
        for variant in found:
            counts = self._divided(variant)
            if counts:
                needed = least_memories(self._known(blocks)[: len(counts)], counts, variant)
                least.append((float(needed[-1]), counts[-1], variant))
        if not least:
            topology = found[0].topology(self._mesh)
            return Baseline(PlannedBaseline(family.name, topology, 1, None))
        memory, parts, variant = min(least, key=lambda item: item[0])
        topology = self._topology(variant, blocks)
        return Baseline(PlannedBaseline(family.name, topology, parts, memory))

    def _topology(self, variant: Variant, blocks: Blocks) -> str:
        return variant.topology(self._mesh) + (", blocks run again" if blocks else "")

    def _fastest(self, topologies: Sequence[Sequence[_Way]]) -> Baseline | None:
        """The fastest whose fullest moment keeps to the limit."""
        return fastest(topologies, self._bound, self._solve, self._may_fit, self._smaller)

    def _smaller(self, way: _Way, found: Baseline) -> list[_Way] | None:
        """A limit that is lowered by what the fullest moment exceeds it, then more micro-batches.

        None if the fullest moment keeps to the limit.
        """
        limit, memory = self.model.limit_bytes, found.record.memory_bytes
        assert memory is not None
        excess = found.excess_bytes if memory > limit * _SURE else 0.0
        if excess <= 0:
            return None
        ways = [
            _Way(way.variant, parts, way.blocks, limit)
            for parts in self._divided(way.variant)
            if parts > way.parts
        ]
        limit = memory - excess * 2**way.lowered
        if way.lowered < _TIGHTENINGS and limit > 0:
            ways.insert(0, replace(way, limit=limit, lowered=way.lowered + 1))
        return ways

    def _divided(self, variant: Variant) -> tuple[int, ...]:
        """The numbers of micro-batches whose rows divide over the scheme's data axes."""
        rows = self.micro.whole.batch
        devices = self._mesh.extent(variant.data_axes(self._mesh))
        counts = tuple(n for n in self.counts if (rows // n) % devices == 0)
        return counts if counts and self._tables(self.counts[0], ()).divides(variant) else ()

    @property
    def _mesh(self) -> Mesh:
        return self.model.cluster.mesh

    def _known(self, blocks: Blocks) -> tuple[SchemeTables, ...]:
        """At the first numbers of micro-batches, which tell the memory at all others."""
        return tuple(self._tables(parts, blocks) for parts in self.counts[:3])

    def _tables(self, parts: int, blocks: Blocks) -> SchemeTables:
        key = parts, bool(blocks)
        if key not in self._made:
            grouping = self.micro.grouping(parts)
            self._made[key] = SchemeTables(
                grouping, self.micro.again(parts, blocks), self.model, parts, self._prices,
                self._topologies, self._letters, self._rows.setdefault(parts, {}),
            )  # fmt: skip
        return self._made[key]

    @cached_property
    def _topologies(self) -> tuple[tuple[int, ...], ...]:
        every = (variant for family in self.families for variant in variants(family, self._mesh))
        return tuple(dict.fromkeys(variant.tensor_axes for variant in every))

    @cached_property
    def _prices(self) -> CoarsePrices:
        return CoarsePrices(self.model.comm, self._topologies)

    @cached_property
    def _paths(self) -> PathTable:
        return PathTable(self._mesh, self.model.comm.price, self.model.comm.collectives)

    @cached_property
    def _letters(self) -> dict[str, Mapping[str, str]]:
        graph = self.micro.graph(self.counts[0])
        return {f.name: {} if f.letters is None else f.letters(graph) for f in self.families}

    @cached_property
    def _problems(self) -> dict[_Way, tuple[Problem, list[Rows]]]:
        """At the whole limit."""
        return {}

    @cached_property
    def _solved(self) -> dict[_Way, Baseline]:
        return {}

    @cached_property
    def _made(self) -> dict[tuple[int, bool], SchemeTables]:
        return {}

    @cached_property
    def _rows(self) -> dict[int, dict[str, GroupRows]]:
        """Number of micro-batches -> the strategies of the groups, whatever is run again."""
        return {}

    def _problem(self, way: _Way) -> tuple[Problem, list[Rows]]:
        """The search problem of a way, and its strategies as rows of the scheme's tables."""
        key = replace(way, limit=self.model.limit_bytes, lowered=0)
        if key not in self._problems:
            tables = self._tables(way.parts, way.blocks)
            self._problems[key] = tables.problem(way.variant, key.limit)
        problem, rows = self._problems[key]
        return replace(problem, memory_limit=way.limit), rows

    def _divides(self, way: _Way) -> bool:
        """Whether the data axes divide every group of operators."""
        return self._tables(way.parts, way.blocks).divides(way.variant)

    def _bound(self, way: _Way) -> float:
        if not self._divides(way):
            return math.inf
        return free_bound(self._problem(way)[0])

    def _may_fit(self, way: _Way) -> bool:
        if not self._divides(way):
            return False
        problem, _ = self._problem(way)
        nodes, edges = (
            tuple(map(np.zeros_like, c)) for c in (problem.node_cost, problem.edge_cost)
        )
        return may_fit(replace(problem, node_cost=nodes, edge_cost=edges))

    def _solve(self, way: _Way, beat_s: float, roughly: bool) -> Baseline | None:
        """The best plan of the way whose bytes add up to its limit at most; None if none does.

        If it takes `beat_s` or more, it may be any plan or none.
        """
        if way in self._solved:
            return self._solved[way]
        if not self._divides(way):
            return None
        made, variant, parts = self._tables(way.parts, way.blocks), way.variant, way.parts
        problem, rows = self._problem(way)
        solve = find_algorithm("auto")
        budget = Budget(gap=_ROUGH if roughly else _GAP)
        limited = replace(problem, cost_limit=beat_s)
        result = solve(limited, np.random.default_rng(self.seed), budget)
        if result is None:
            return None
        choice = np.array([r[s] for r, s in zip(rows, result.choice, strict=True)])
        compute_s = sum(
            parts * float(made.tables.table_of(variable).compute_s[row])
            for variable, row in enumerate(choice)
        )
        record = PlannedBaseline(
            variant.family.name,
            self._topology(variant, way.blocks),
            parts,
            result.memory,
            result.cost,
            result.cost - compute_s,
        )
        storage = made.storage(choice)
        least_s = result.lower_bound
        found = Baseline(record, variant, made.tables, choice, storage, self._paths, least_s)
        if found.is_fastest:
            self._solved[way] = found
        return found
