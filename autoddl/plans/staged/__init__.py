"""A plan with pipeline stages: a plan for each stage, on its own part of the cluster."""

from .load import load_plan, loads_plan
from .plan import StagedPlan

__all__ = ["StagedPlan", "load_plan", "loads_plan"]
