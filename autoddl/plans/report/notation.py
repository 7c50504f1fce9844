"""Placements in the words, or in the labels, in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp, Placement
from ..format import short_signature
from ..stage import BATCH, COPIES, MEANINGS, SUMMANDS, Split
from .sections import Notation

TOPOLOGY = (
    "topology: S0 rows, B columns and S1 the summed dim are split, R repeats, each over (hosts, "
    "devices of each)"
)
_LABELS = (
    f"{TOPOLOGY}; signature: S<dim> splits it, B is the whole, P a part of a sum, one for "
    "each axis of the mesh, S0*2 for two"
)


@lru_cache(maxsize=10_000)  # equal layers tell of equal ones
def placement(nd: NdSbp, mesh: Mesh, batch_dims: tuple[int, ...], notation: Notation) -> str:
    """Where a tensor is: `batch 4`, `dim1 2 × copies 2`, `summands 4`, or `whole` on each device.

    batch_dims: of the tensor, those that grow with the batch
    """

    def word(label: Placement) -> str:
        if label.is_split:
            return BATCH if label.dim in batch_dims else f"dim{label.dim}"
        return SUMMANDS if label.is_partial else COPIES

    if notation == "sbp":
        return short_signature(str(nd))
    if all(label.is_broadcast for label in nd):
        return "whole"
    return str(Split.of([word(label) for label in nd], mesh))


def legend(splits: Iterable[Split]) -> Mapping[Notation, str]:
    """What the words of these splits mean, and what labels do."""
    told = {part.word for split in splits for part in split.parts}
    meanings = [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in told]
    return {"words": f"split: {'; '.join(meanings)}", "sbp": _LABELS} if meanings else {}
