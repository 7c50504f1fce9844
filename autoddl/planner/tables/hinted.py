"""Which strategies of a group obey what hints demand of its operators, and why none does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...graph.demands import COUNTS, FORBIDDEN, Demand
from ...graph.graph import Graph, Op
from ...sbp.mesh import Mesh
from ...sbp.placement import Placement
from .groups import CompositeSignature, Group
from .strategies import Assignments, Even, assignments

Composites = tuple[CompositeSignature, ...]
_SHOWN = 6  # placements that a refusal names


@dataclass(frozen=True)
class Hinted:
    """The demands that hints make of a group of operators on a mesh."""

    graph: Graph
    mesh: Mesh
    group: Group

    def allowed(self, composites: Composites) -> Composites:
        """The signatures that some axis may have; all if there is none, as a refusal tells them."""
        stays = np.ones(len(composites), dtype=bool)
        for number, demand in self.group.demands:
            codes = self._codes(number, demand, composites)
            every = demand.devices(self.mesh) == self.mesh.size > 1
            stays &= (codes == COUNTS if every else codes != FORBIDDEN).any(axis=0)
        if self.mesh.num_axes == 0 or not stays.any():
            return composites
        return tuple(c for c, stay in zip(composites, stays, strict=True) if stay)

    def mask(self, composites: Composites) -> Callable[[Assignments], NDArray[np.bool_]]:
        """A test whether assignments obey.

        Of assignments to the first axes only, it tells whether others can follow so that all obey.
        """
        own = [(d, self._codes(n, d, composites)) for n, d in self.group.demands]

        def obeys(assign: Assignments) -> NDArray[np.bool_]:
            found = np.ones(len(assign), dtype=bool)
            for demand, codes in own:
                found &= self._obeys(demand, codes, assign)
            return found

        return obeys

    def _obeys(
        self, demand: Demand, codes: NDArray[np.int8], assign: Assignments
    ) -> NDArray[np.bool_]:
        length = assign.shape[1]
        at = codes[np.arange(length), assign]
        found = (at != FORBIDDEN).all(axis=1)
        devices = demand.devices(self.mesh)
        if devices is None:
            return found
        parts = self._devices(at)
        return found & (parts == devices if length == self.mesh.num_axes else devices % parts == 0)

    def _devices(self, at: NDArray[np.int8]) -> NDArray[np.int64]:
        """Along the axes that count."""
        extents = np.array(self.mesh.extents[: at.shape[1]], dtype=np.int64)
        return np.where(at == COUNTS, extents, 1).prod(axis=1)

    def _codes(self, number: int, demand: Demand, composites: Composites) -> NDArray[np.int8]:
        """[axes, composites] of `Demand.on_axis`."""
        op = self.group.ops[number]
        sides = [(c.signatures[number].ins, c.signatures[number].outs) for c in composites]
        wanted: Sequence[Placement | None] = (None,) * self.mesh.num_axes
        if demand.kind in ("in", "out"):
            wanted = demand.wanted(self.mesh)
        known = {
            placement: [demand.on_axis(self.graph, op, *side, placement) for side in sides]
            for placement in set(wanted)
        }
        rows = np.array([known[placement] for placement in wanted], dtype=np.int8)
        return rows.reshape(self.mesh.num_axes, len(composites))

    def refusal(
        self, composites: Composites, even: Callable[[Group, Sequence[CompositeSignature]], Even]
    ) -> str:
        """Which hints no strategy obeys, and what is possible; or which contradict each other."""
        divides = even(self.group, composites)
        none: frozenset[int] = frozenset()
        rows = assignments(len(composites), none, none, self.mesh, divides)
        codes = [self._codes(n, d, composites) for n, d in self.group.demands]
        pairs = zip(self.group.demands, codes, strict=True)
        obey = [self._obeys(demand, own, rows) for (_, demand), own in pairs]
        for (number, demand), own, found in zip(self.group.demands, codes, obey, strict=True):
            if not found.any():
                op = self.group.ops[number]
                possible = ", ".join(self._possible(number, demand, composites, own, rows))
                return (
                    f"the hint {demand.at} cannot hold for {op.name!r} ({op.kind}) on the mesh "
                    f"{self.mesh}{self._sizes(op)}; possible there: {possible or 'nothing'}"
                )
        for (a, (_, first)), (b, (number, second)) in combinations(
            zip(obey, self.group.demands, strict=True), 2
        ):
            if not (a & b).any():
                name = self.group.ops[number].name
                return f"the hints {first.at} and {second.at} contradict each other at {name!r}"
        names = " and ".join(dict.fromkeys(str(demand.at) for _, demand in self.group.demands))
        return f"the hints {names} cannot hold together for {self.group.head.name!r}"

    def _sizes(self, op: Op) -> str:
        return ", whose tensors are " + ", ".join(
            str(self.graph.tensors[name].spec) for name in (*op.inputs, *op.outputs)
        )

    def _possible(
        self, number: int, demand: Demand, composites: Composites, codes: NDArray[np.int8],
        rows: Assignments,
    ) -> Iterator[str]:  # fmt: skip
        """What could stand in the place of a demand that no strategy meets."""
        if demand.devices(self.mesh) is not None:
            at = codes[np.arange(self.mesh.num_axes), rows]
            counts = self._devices(at)[(at != FORBIDDEN).all(axis=1)]
            yield from (f"{demand.hint.kind}({n})" for n in sorted(set(counts.tolist())))
            return
        side = "outs" if demand.kind == "out" else "ins"
        labels = [getattr(c.signatures[number], side)[demand.index] for c in composites]
        found = dict.fromkeys(tuple(labels[c] for c in row) for row in rows)
        for row in list(found)[:_SHOWN]:
            yield f"({', '.join(map(str, row))})"
        if len(found) > _SHOWN:
            yield f"and {len(found) - _SHOWN} more"
