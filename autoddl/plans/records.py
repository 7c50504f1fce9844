"""What a plan records of its layers, of the known schemes beside it, and of its search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, NamedTuple

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from .._files import FIELDS, OMIT, Count, Name, NotNegative, OneOf, Positive, Size, Stored
from ..sbp.mesh import Mesh

COPIES, SUMMANDS, BATCH = "copies", "summands", "batch"
# In the order in which they are told; other words (`dim1`) come after the first
MEANINGS = {
    BATCH: "rows of the batch",
    "rows": "other rows of a product, such as the positions of a sequence",
    "matrices": "products that are independent of each other, such as the heads of attention",
    "out": "output features or channels",
    "in": "input features or channels, which are summed over: parts of the sum are added up",
    "vocabulary": "rows of the table that is looked up",
    SUMMANDS: "each device has a part of a sum that is not added up yet",
    COPIES: "so many devices have, or compute, the same",
}


class SplitPart(NamedTuple):
    """parts: into how many `word` is divided; hosts: over how many hosts (1: inside of each)."""

    word: Name
    parts: Count
    hosts: Count = 1


@dataclass(frozen=True)
class Split:
    """How an operator's work, or a tensor, is divided over a mesh: `batch 4 × out 2`.

    Every mesh axis divides one loop of an operator, or none, and one dim of a tensor, or none. Each
    word has the number of its parts, whose product is all devices, and over how many hosts they are
    spread, which `str` tells where it does not go without saying. On one device there are none.
    """

    parts: tuple[SplitPart, ...] = ()

    @staticmethod
    def of(words: Sequence[str], mesh: Mesh, order: Iterable[str] = MEANINGS) -> Split:
        """words: one for each mesh axis; order: in which they are told"""
        known = list(order)
        found = []
        for word in sorted(set(words), key=lambda w: (known.index(w) if w in known else 0.5, w)):
            nodes, gpus = mesh.topology(a for a, at in enumerate(words) if at == word)
            found.append(SplitPart(word, nodes * gpus, nodes))
        return Split(tuple(found))

    def __str__(self) -> str:
        nodes = math.prod(part.hosts for part in self.parts)
        devices = math.prod(part.parts for part in self.parts)
        tells = len(self.parts) > 1 and 1 < nodes < devices
        return " × ".join(
            f"{part.word} {part.parts}"
            + (f" over {part.hosts} hosts" if tells and part.hosts > 1 else "")
            for part in self.parts
        )

    def count(self, word: str) -> int:
        """The parts of a word; 1 if it is not divided."""
        return math.prod(part.parts for part in self.parts if part.word == word)


StoredSplit = Annotated[Split, Stored(tuple[SplitPart, ...], Split, attrgetter("parts"))]


@dataclass(frozen=True)
class PlannedLayer:
    """A layer of the plan's table: a heavy operator and the light ones around it.

    split:       how the heavy operator's work is divided
    topology:    the same as the paper's (S0:(n,g), B:(n,g), S1:(n,g)), (nodes, GPUs) tuples
    signature:   the heavy operator's placements, inputs -> outputs
    alternative: the next best topology with everything else as planned, its split, and what it
                 would add to the iteration (seconds); "" if there is none
    """

    name: Name
    op: Name
    split: StoredSplit
    topology: str
    signature: str
    alternative: str = ""
    alternative_split: StoredSplit = Split()
    alternative_extra_s: float = 0.0
    ops: tuple[str, ...] = field(kw_only=True)

    __pydantic_config__ = FIELDS


@dataclass(frozen=True)
class PlannedBaseline:
    """A known scheme on its best topology, as the planner priced it beside the plan.

    iteration_s, communication_s: seconds; None if the scheme fits on no topology. Communication
                              that runs beside computation does not count
    memory_bytes: of one device; the least that was found if the scheme does not fit, None if it
                  does not divide the batch
    breaks:       the first of the plan's hints that it does not obey, so it was not to be chosen
    """

    name: Name
    topology: str
    micro_batches: Count
    memory_bytes: NotNegative | None
    iteration_s: Positive | None = None
    communication_s: NotNegative | None = None
    breaks: Annotated[str, OMIT] = ""

    __pydantic_config__ = FIELDS

    @property
    def fits(self) -> bool:
        return self.iteration_s is not None


@dataclass(frozen=True)
class SearchRecord:
    """How a plan was found. `seconds` is measured and stays out of its file (0 after loading).

    lower_bound_s: no plan in the searched space, with as many micro-batches and within the memory
                   limit, takes less; None if the algorithm proves nothing
    end:           "done", or what stopped the search: "budget", "interrupted", or "size" where its
                   tables would have become too large; "memory" where the bound leaves a gap as it
                   does not know how full a step's fullest moment is
    """

    algorithm: Name
    evaluations: Size
    lower_bound_s: NotNegative | None = None
    end: Annotated[str, OneOf(("done", "budget", "interrupted", "size", "memory"))] = "done"
    seconds: Annotated[SkipJsonSchema[float], Field(exclude=True)] = field(
        default=0.0, compare=False
    )

    __pydantic_config__ = FIELDS


@dataclass(frozen=True)
class StagePrice:
    """What a run of layers costs on one part of the cluster, as a pipeline stage.

    forward_s, backward_s: of one micro-batch; once_s: once an iteration
    fixed_bytes: parameters and their state; stash_bytes: what each micro-batch in flight holds
    work_bytes: what is there for one micro-batch at a time
    """

    forward_s: float
    backward_s: float
    once_s: float = 0.0
    fixed_bytes: float = 0.0
    stash_bytes: float = 0.0
    work_bytes: float = 0.0

    def memory_bytes(self, in_flight: int) -> float:
        return self.fixed_bytes + in_flight * self.stash_bytes + self.work_bytes
