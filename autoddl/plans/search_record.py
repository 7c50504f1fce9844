"""How a plan was found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SearchRecord:
    """`seconds` is measured and stays out of the plan's file (0 after loading).

    lower_bound_s: no plan in the searched space, with as many micro-batches and within the memory
                   limit, takes less; None if the algorithm proves nothing
    end:           "done", or what stopped the search: "budget" or "interrupted"
    """

    algorithm: str
    evaluations: int
    lower_bound_s: float | None = None
    end: str = "done"
    seconds: float = field(default=0.0, compare=False)
