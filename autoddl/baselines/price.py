"""All baselines priced on one graph and cluster, each with its best topology.

`price_baselines` tries every family of `families.py` on every topology, with as few micro-batches as
its memory allows, and searches what the scheme leaves open (where light operators run, which
redistributions) exactly. The prices are those of the search, so a baseline and a searched plan are
compared by one ruler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..cost.model import CostModel
from ..graph import Graph
from ..planned import PlannedBaseline, PlannedEdge, PlannedOp
from ..search.algorithms import find_algorithm
from ..search.budget import Budget
from ..sbp.redistribute import PathTable
from ..search.placements import place
from ..search.problem import Choice
from ..search.tables import Tables
from .coarse import CoarsePrices
from .families import FAMILIES, Family, Variant, variants
from .storage import split_storage
from .tables import SchemeTables


@dataclass(frozen=True)
class Baseline:
    """A family at its best: what the plan records of it, and how to write it down as a plan.

    tables, choice, variant: None if no topology of the family fits
    """

    record: PlannedBaseline
    variant: Variant | None = None
    tables: Tables | None = None
    choice: Choice | None = None

    @property
    def seconds(self) -> float:
        """Of an iteration; inf if the baseline does not fit."""
        found = self.record.iteration_s
        return float("inf") if found is None else found

    def placed(
        self,
    ) -> tuple[Mapping[str, PlannedOp], Mapping[tuple[str, int], PlannedEdge]]:
        """The placements of operators and the steps between them. Only of a baseline that fits."""
        assert self.variant is not None and self.tables is not None and self.choice is not None
        ops, edges = place(self.tables, self.choice)
        if not self.variant.family.split_stored:
            return ops, edges
        mesh = self.tables.model.cluster.mesh
        paths = PathTable(mesh, self.tables.model.comm.price)
        axes = self.variant.data_axes(mesh)
        return split_storage(self.tables.grouping.graph, paths, axes, ops, edges)


@dataclass(frozen=True)
class BaselinePricer:
    """Prices the baselines of a graph under `model`.

    micro: number of micro-batches -> the graph of one, with forks
    counts: numbers of micro-batches to try, ascending
    """

    micro: Callable[[int], Graph]
    counts: Sequence[int]
    model: CostModel
    seed: int = 0

    def all(self) -> tuple[Baseline, ...]:
        """Every family at its best, in the order of `FAMILIES`."""
        mesh = self.model.cluster.mesh
        tried = {family: variants(family, mesh) for family in FAMILIES}
        tried = {family: found for family, found in tried.items() if found}
        every = [variant for found in tried.values() for variant in found]
        graph = self.micro(self.counts[0])
        letters = {f.name: {} if f.letters is None else f.letters(graph) for f in tried}
        topologies = tuple(dict.fromkeys(v.tensor_axes for v in every))
        prices = CoarsePrices(self.model.comm, topologies)
        made: dict[int, SchemeTables] = {}

        def tables(parts: int) -> SchemeTables:
            if parts not in made:
                made[parts] = SchemeTables(
                    self.micro(parts), self.model, parts, prices, topologies, letters
                )
            return made[parts]

        return tuple(self._best(family, found, tables) for family, found in tried.items())

    def _best(
        self, family: Family, found: Sequence[Variant], tables: Callable[[int], SchemeTables]
    ) -> Baseline:
        counts = {variant: self._divided(variant, tables) for variant in found}
        first = {variant: self._first_fit(variant, counts[variant], tables) for variant in found}
        best: Baseline | None = None
        # Those that need the fewest micro-batches come first: their times bound the others.
        for variant in sorted(found, key=lambda v: first[v]):
            for parts in counts[variant][first[variant] :]:
                solved = self._solve(variant, tables(parts), parts)
                if solved is not None:
                    best = solved if best is None or solved.seconds < best.seconds else best
                    break
        return self._unfit(family, found, counts, tables) if best is None else best

    def _divided(
        self, variant: Variant, tables: Callable[[int], SchemeTables]
    ) -> tuple[int, ...]:
        """The numbers of micro-batches whose rows divide over the scheme's data axes."""
        mesh = self.model.cluster.mesh
        rows = self.micro(1).batch
        devices = mesh.extent(variant.data_axes(mesh))
        counts = tuple(n for n in self.counts if (rows // n) % devices == 0)
        return counts if counts and not tables(counts[0]).undivided(variant) else ()

    def _first_fit(
        self, variant: Variant, counts: Sequence[int], tables: Callable[[int], SchemeTables]
    ) -> int:
        """Position of the first of `counts` whose least memory is within the limit, by bisection.

        The number of `counts` if there is none.
        """
        limit, low, high = self.model.limit_bytes, 0, len(counts)
        while low < high:
            # Most often the whole batch fits.
            middle = (low + high) // 2 if low else 0
            if tables(counts[middle]).least_memory(variant) <= limit:
                high = middle
            else:
                low = middle + 1
        return low

    def _solve(self, variant: Variant, made: SchemeTables, parts: int) -> Baseline | None:
        """The best plan of the scheme; None if none fits."""
        problem, rows = made.problem(variant, self.model.limit_bytes)
        solve = find_algorithm("auto")
        result = solve(problem, np.random.default_rng(self.seed), Budget())
        if result is None:
            return None
        choice = np.array([r[s] for r, s in zip(rows, result.choice, strict=True)])
        compute_s = sum(
            parts * float(made.tables.table_of(variable).compute_s[row])
            for variable, row in enumerate(choice)
        )
        record = PlannedBaseline(
            variant.family.name,
            variant.topology(self.model.cluster.mesh),
            parts,
            result.memory,
            result.cost,
            result.cost - compute_s,
        )
        return Baseline(record, variant, made.tables, choice)

    def _unfit(
        self,
        family: Family,
        found: Sequence[Variant],
        counts: Mapping[Variant, Sequence[int]],
        tables: Callable[[int], SchemeTables],
    ) -> Baseline:
        """The record of a family that fits on no topology: its least memory, or what is uneven."""
        mesh = self.model.cluster.mesh
        sizes = [
            (tables(counts[variant][-1]).least_memory(variant), n, variant)
            for n, variant in enumerate(found)
            if counts[variant]
        ]
        if sizes:
            memory, _, variant = min(sizes)
            record = PlannedBaseline(
                family.name, variant.topology(mesh), counts[variant][-1], memory
            )
        else:
            record = PlannedBaseline(family.name, found[0].topology(mesh), 1, None)
        return Baseline(record)
