"""The plan: the only hand-over from planning to the runtime."""

from ..graph.placed import PlannedEdge, PlannedOp
from .plan import Plan
from .stage import PlannedLayer, SearchRecord, StagePlan

__all__ = ["Plan", "PlannedEdge", "PlannedLayer", "PlannedOp", "SearchRecord", "StagePlan"]
