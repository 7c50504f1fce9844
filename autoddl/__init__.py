"""autoddl: plans and runs parallel training of OneFlow models.

    trainer = autoddl.parallelize(model, cluster, example=(x, y), loss=loss_fn, optimizer=...)

`trace` (model -> Graph) and `plan` (graph, cluster -> Plan) are its two halves. Names are imported
when they are first used, so that `import autoddl` costs nothing; only `trace` and `parallelize`
need OneFlow.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import BackendMissing, parallelize, plan, trace
    from .cluster import Cluster
    from .graph.graph import Graph
    from .graph.hints import batchwise, opaque, replicate, set_default, split, stage
    from .planner.options import PlanOptions
    from .plans import Plan
    from .plans.figures import figures
    from .plans.report import explain

__version__ = "0.2.0"

__all__ = [
    "BackendMissing",
    "Cluster",
    "Graph",
    "Plan",
    "PlanOptions",
    "batchwise",
    "explain",
    "figures",
    "opaque",
    "parallelize",
    "plan",
    "replicate",
    "set_default",
    "split",
    "stage",
    "trace",
]

if os.environ.get("RANK") and os.environ.get("WORLD_SIZE", "1") != "1":
    # what fails in this rank before it trains would leave the others waiting for it
    from .runtime.jobs.guard import install_guard

    install_guard()
    # each rank would say that it has no GPU, and who was not there yet when it started
    os.environ.setdefault("GLOG_minloglevel", "3")

_HOMES = {
    "BackendMissing": "api",
    "Cluster": "cluster",
    "Graph": "graph.graph",
    "Plan": "plans",
    "PlanOptions": "planner.options",
    "batchwise": "graph.hints",
    "explain": "plans.report",
    "figures": "plans.figures",
    "opaque": "graph.hints",
    "parallelize": "api",
    "plan": "api",
    "replicate": "graph.hints",
    "set_default": "graph.hints",
    "split": "graph.hints",
    "stage": "graph.hints",
    "trace": "api",
}
_PACKAGES = {"box": "tools.box"}  # that are used as `autoddl.box`


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f".{_PACKAGES[name]}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
