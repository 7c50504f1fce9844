"""The plan: the only hand-over from planning to the runtime."""

from ..graph.placed import PlannedEdge, PlannedLayer, PlannedOp
from .plan import Plan
from .search_record import SearchRecord

__all__ = ["Plan", "PlannedEdge", "PlannedLayer", "PlannedOp", "SearchRecord"]
