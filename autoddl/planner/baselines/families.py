"""The families of known schemes, and the topologies in which each is tried.

The mesh's axes are divided in two: *data* axes split the batch, *tensor* axes the weights.

    family          tensor axes            replicated weights are stored
    data parallel   none                   whole
    ZeRO            none                   split over the data axes, gathered at use
    Megatron        columns, rows in turn  whole
    Megatron+ZeRO   columns, rows in turn  split over the data axes, gathered at use
    SUMMA           columns everywhere     split over the data axes, gathered at use

SUMMA in SBP: on a grid of r x c devices X, W and Y are stored as (S0, S1), in blocks. A device
needs the block row of X and the block column of W, which SUMMA broadcasts block by block along the
rows and the columns of the grid; the bytes are those of an all-gather of X along c, (S0, S1) ->
(S0, B), and one of W along r, (S0, S1) -> (B, S1). The product (S0, B) x (B, S1) is local.
The backward pass mirrors both by reduce-scatters. This is the S0, B, S1 = r, c, 1 case of AutoDDL's
section 4.2 with W in blocks. A difference to Optimus, in SUMMA's favour: the runtime gathers a
parameter once an iteration and keeps what it gathered for the backward pass, where Optimus
broadcasts W again in each pass and for each micro-batch (section 5.4). So SUMMA is faster here than
there, and takes the memory of a gathered copy.

ZeRO here is stage 1 or 2, whichever fits and is faster (`cost.storage`): a parameter and its
optimizer state are split over the axes that replicate it, in stage 2 its gradient too; all-gather
and reduce-scatter cost as much as the all-reduce of data parallelism. A gathered copy stays for the
iteration; stage 3, without it, only the search chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...graph.graph import Graph
from ...sbp.mesh import Mesh
from .letters import alternating, columns


@dataclass(frozen=True)
class Family:
    """A scheme up to its topology.

    letters:      graph -> operator -> the letter that its products have on the tensor axes; None
                  for a family without tensor axes
    split_stored: parameters are stored split over the data axes (ZeRO, SUMMA)
    axes_names:   how the family calls its data and its tensor axes
    """

    name: str
    letters: Callable[[Graph], Mapping[str, str]] | None
    split_stored: bool
    axes_names: tuple[str, str] = ("data", "tensor")


FAMILIES = (
    Family("data parallel", None, False),
    Family("ZeRO", None, True),
    Family("Megatron", alternating, False),
    Family("Megatron+ZeRO", alternating, True),
    Family("SUMMA", columns, True, ("rows", "columns")),
)


@dataclass(frozen=True)
class Variant:
    """A family on one topology."""

    family: Family
    tensor_axes: tuple[int, ...]

    def data_axes(self, mesh: Mesh) -> tuple[int, ...]:
        return tuple(a for a in range(mesh.num_axes) if a not in self.tensor_axes)

    def topology(self, mesh: Mesh) -> str:
        """`data:(4,1), tensor:(16,1)`, extents in (nodes, GPUs)."""
        data, tensor = mesh.topology(self.data_axes(mesh)), mesh.topology(self.tensor_axes)
        extents = (data,) if self.family.letters is None else (data, tensor)
        names = self.family.axes_names[: len(extents)]
        return ", ".join(f"{n}:({e[0]},{e[1]})" for n, e in zip(names, extents, strict=True))


def variants(family: Family, mesh: Mesh) -> tuple[Variant, ...]:
    """The topologies of `family`: the last axes of the mesh are its tensor axes.

    So tensor parallelism stays inside the nodes as far as it can, as Megatron's authors advise.
    Megatron has at least one tensor axis, SUMMA both kinds where the mesh has two axes.
    """
    axes = range(mesh.num_axes)
    if family.letters is None:
        return (Variant(family, ()),)
    least = 1 if family.split_stored and mesh.num_axes > 1 else 0
    return tuple(Variant(family, tuple(axes[first:])) for first in range(least, mesh.num_axes))
