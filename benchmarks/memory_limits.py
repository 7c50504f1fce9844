"""The memory limit lowered step by step, and each plan as OneFlow compiles it.

`python -m benchmarks.memory_limits` (part of `make bench-memory`). From the memory that a plan
without a limit takes, each limit is a share of what the plan before needed, until none fits. Every
plan is compiled for CUDA devices without a GPU, if nn.Graph has operators for it; what OneFlow
plans must not exceed the limit by more than `MOST_OVER`. The table goes to
benchmarks/results/memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.memory.exact import check_compiles, exact_memory
from autoddl.runtime.oneflow.memory.rules import compiles
from autoddl.runtime.oneflow.trace.entries import trace_entry
from benchmarks.memory import MACHINE, ROOT, graph_of
from benchmarks.memory_cases import ANY_MEMORY

MOST_OVER = 0.05
# model -> share of what a plan needs that is the next limit
MODELS = {"gpt_small": 0.85, "mlp 8x2048": 0.85, "dlrm 8x100k": 0.96}
SHAPES = ((2, 2), (1, 4))


def plans(graph: Graph, where: Cluster, share: float) -> Iterator[Plan]:
    """From the one without a limit to the last one that fits."""
    limit = ANY_MEMORY
    while True:
        try:
            plan = find_plan(graph, where, PlanOptions(overlap=False, memory_limit_bytes=limit))
        except ValueError as error:
            print(error, flush=True)
            return
        yield plan
        limit = share * min(limit, max(needs(plan)))


def needs(plan: Plan) -> tuple[int, ...]:
    """Predicted bytes of the executor's step, and of the compiled one where there is one."""
    predicted = stage_figures(plan.stage)
    executor = predicted.memory_peak("executor").bytes
    return (executor, predicted.memory_peak().bytes) if compiles(predicted.step) else (executor,)


def measure(plan: Plan) -> dict[str, Any]:
    executor, *graph = needs(plan)
    compiled = None
    reason = ""
    try:
        check_compiles(plan)
    except ValueError as error:
        reason = str(error)
    else:
        compiled = exact_memory(plan).total
    limit = plan.memory_limit_bytes
    return {
        "model": plan.graph.name,
        "devices": f"{plan.cluster.nodes}x{plan.cluster.gpus_per_node}",
        "limit_bytes": None if limit == ANY_MEMORY else limit,
        "micro_batches": plan.micro_batches,
        "recomputed_blocks": len(plan.recomputed),
        "zero_stages": sorted({edge.zero_stage for edge in plan.stage.edges.values()} - {0}),
        "iteration_s": figures(plan).cost.iteration_s,
        "executor_bytes": executor,
        "graph_bytes": graph[0] if graph else None,
        "compiled_bytes": compiled,
        "not_compiled": reason,
        "error": graph[0] / compiled - 1 if graph and compiled else None,
        "of_limit": compiled / limit if compiled and limit != ANY_MEMORY else None,
    }


def markdown(result: dict[str, Any]) -> str:
    rows = result["rows"]
    limited = [row["of_limit"] for row in rows if row["of_limit"]]
    errors = [row["error"] for row in rows if row["error"] is not None]
    none = sum(row["compiled_bytes"] is None for row in rows)
    lines = [
        f"The limit lowered step by step, until no plan fits ({result['date']}): {len(rows)} "
        f"plans. OneFlow's own plan takes at most {max(limited):.3f} of the limit; predicted for "
        f"it: {min(errors):+.1%} to {max(errors):+.1%}. {none} are not compiled.",
        "",
        "| model | devices | limit MB | micro-batches | blocks run again | ZeRO | s an iteration | executor, predicted MB | nn.Graph, predicted MB | compiled MB | of the limit |",  # noqa: E501
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [
            row["model"], row["devices"], _mb(row["limit_bytes"]), row["micro_batches"],
            row["recomputed_blocks"] or "-", ", ".join(map(str, row["zero_stages"])) or "-",
            f"{row['iteration_s']:.4g}", _mb(row["executor_bytes"]), _mb(row["graph_bytes"]),
            _mb(row["compiled_bytes"]), f"{row['of_limit']:.3f}" if row["of_limit"] else "-",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _mb(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "memory")
    output: Path = parser.parse_args().output
    rows = []
    for model, share in MODELS.items():
        graph = trace_entry(model) if ":" in model else graph_of(model)
        for nodes, gpus in SHAPES:
            where = Cluster.load(MACHINE).with_shape(nodes=nodes, gpus_per_node=gpus)
            for plan in plans(graph, where, share):
                rows.append(measure(plan))
                print(json.dumps(rows[-1]), flush=True)
    result = {"date": datetime.now(timezone.utc).date().isoformat(), "rows": rows}
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / "limits.json", json.dumps(result, indent=1))
    write_atomically(
        output / "limits.md", f"# Memory limits lowered step by step\n\n{markdown(result)}"
    )
    if any(row["of_limit"] and row["of_limit"] > 1 + MOST_OVER for row in rows):
        raise SystemExit("OneFlow's own plan exceeds a limit")


if __name__ == "__main__":
    main()
