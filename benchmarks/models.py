"""Every family of flowvision's image models, and the models that come with autoddl, planned.

python -m benchmarks.models [--only densenet121,gpt_small] [--output benchmarks/results/models.md]
python -m benchmarks.models --integer 600 --only resnet50,gpt_small --output integer.md

Of each family one model at its default size, batch 32, on 2x8 and 8x8 devices of `gcp_a100`: how
many operators it has and how many of them run undivided for want of a rule (opaque), CPU seconds of
building it, of tracing and of planning, the gap that is proven, and the closest known scheme. Each
model is a process of its own. A model that cannot be traced or planned says why in its row.

With `--integer SECONDS` the searches are compared instead: the tables of one iteration on 2x8, or
on `--shape`, solved by `auto` and, as in autoparallel, as an integer program by HiGHS (`integer`),
which gets so many seconds of wall time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from autoddl._files import write_atomically
from autoddl.search.problem import ROUNDING
from benchmarks.golden import Case

FAMILIES = (
    "alexnet", "cait_S24_224", "convmixer_768_32_relu", "convnext_tiny_224",
    "crossformer_tiny_patch4_group7_224", "cswin_base_224", "deit_small_patch16_LS_224",
    "densenet121",
    "dla34", "efficientnet_b0", "fan_tiny_12_p16_224", "genet_small", "ghostnet", "googlenet",
    "hrnet_w18", "inception_v3", "levit_128", "mlp_mixer_b16_224", "mnasnet0_5", "mobilenet_v2",
    "mobilenet_v3_large", "mobilevit_small", "poolformer_s12", "pvt_large", "regionvit_tiny_224",
    "regnet_y_400mf", "res2net101_26w_4s", "resmlp_12_distilled_224", "resnest50", "resnet50",
    "rexnetv1_1_0", "se_resnet50", "shufflenet_v2_x1_0", "squeezenet1_0",
    "swin_tiny_patch4_window7_224", "uniformer_base", "van_tiny", "vgg13", "vit_small_patch16_224",
)  # fmt: skip
SHIPPED = (
    "alexnet", "dlrm", "gpt_small", "gpt_0_35b", "vgg13", "gpt_moe_small", "bert_moe_8",
    "bert_moe_64", "bert_switch_8", "vit_switch_8",
)  # fmt: skip
OWN = "autoddl:"
SHAPES = ((2, 8), (8, 8))
BATCH = 32  # of flowvision's models
_PATIENCE = 2  # times its limit that HiGHS gets before it is killed


def measured(name: str) -> dict[str, Any]:
    """Trace and plan one model in this process; `error` says what failed."""
    import oneflow as flow

    import autoddl
    from autoddl.plans.figures import figures
    from autoddl.runtime.oneflow.trace.trace import trace
    from benchmarks.golden import built

    # flowvision's ResNeSt calls what OneFlow 0.9.0 names otherwise
    flow.Tensor.zeros_ = flow.Tensor.zero_
    found: dict[str, Any] = {"model": name}
    try:
        _imported(name)
        found["start_s"] = time.process_time()
        model, example, loss = built(_case(name))
        found["build_s"] = time.process_time() - found["start_s"]
        graph = trace(model, *example, loss=loss)
        found["trace_s"] = time.process_time() - found["start_s"] - found["build_s"]
        found["operators"] = len(graph.ops)
        found["opaque"] = sum(op.kind == "opaque" for op in graph.ops)
        for nodes, gpus in SHAPES:
            cluster = autoddl.Cluster.load("gcp_a100").with_shape(nodes, gpus)
            started = time.process_time()
            plan = autoddl.plan(graph, cluster, overlap=False)
            spent_s = time.process_time() - started
            seconds = figures(plan).cost.iteration_s
            rivals = [b for b in plan.baselines if b.iteration_s is not None]
            closest = min(rivals, key=lambda b: b.iteration_s or 0.0, default=None)
            bound = plan.stage.search.lower_bound_s
            found[f"{nodes}x{gpus}"] = {
                "plan_s": spent_s,
                "seconds": seconds,
                "gap": None if bound is None else max(0.0, seconds / bound - 1),
                "found_by": plan.stage.search.algorithm,
                "closest": None if closest is None else [closest.name, closest.iteration_s],
            }
    except Exception as error:  # a row of the table: which models fail, and why
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def searched(name: str, limit_s: float, shape: tuple[int, int]) -> dict[str, Any]:
    """What `auto` and HiGHS find on the same tables of one model; `error` says what failed."""
    import numpy as np

    from autoddl.cluster.spec import Cluster
    from autoddl.cost.model import CostModel
    from autoddl.planner.asked import micro_graph
    from autoddl.planner.tables.group_table import Space
    from autoddl.planner.tables.tables import build_tables
    from autoddl.search.algorithms import find_algorithm
    from autoddl.search.budget import Budget
    from benchmarks.golden import graph_of

    found: dict[str, Any] = {"model": name}
    nodes, gpus = shape
    try:
        cluster = Cluster.load("gcp_a100").with_shape(nodes, gpus)
        graph = micro_graph(graph_of(_case(name)), 1)
        tables = build_tables(graph, CostModel(cluster), 1, Space(zero=True))
        if tables is None:
            raise ValueError("one iteration without micro-batches does not fit")
        problem = tables.problem
        found |= {"variables": problem.num_variables, "strategies": sum(problem.sizes())}
        for search, seconds in (("auto", math.inf), ("integer", limit_s)):
            started, cpu = time.perf_counter(), time.process_time()
            rng = np.random.default_rng(0)
            result = find_algorithm(search)(problem, rng, Budget(seconds=seconds))
            assert result is not None, f"{search} found nothing"
            found[search] = {
                "cost": result.cost,
                "bound": result.lower_bound,
                "end": result.end,
                "cpu_s": time.process_time() - cpu,
                "wall_s": time.perf_counter() - started,
            }
            print(json.dumps(found), flush=True)
    except Exception as error:  # a row of the table, as in `measured`
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def search_table(rows: list[dict[str, Any]], limit_s: float, shape: tuple[int, int]) -> str:
    """Markdown of what was searched."""
    pairs = [(row["auto"], row["integer"]) for row in rows if "integer" in row]
    solved = [pair for pair in pairs if pair[1]["end"] == "done"]
    worse = sum(ours["cost"] > other["cost"] * (1 + ROUNDING) for ours, other in pairs)
    nodes, gpus = shape
    lines = [
        "# `auto` and an integer program, on the same tables",
        "",
        f"One iteration on {nodes}x{gpus} of `gcp_a100`, without micro-batches and recomputation",
        f"(`python -m benchmarks.models --integer {limit_s:g} --shape {nodes}x{gpus}`,",
        f"{datetime.now(timezone.utc):%Y-%m-%d}): autoparallel's formulation, solved by HiGHS",
        f"within {limit_s:g} s of wall time. HiGHS proves its choice on {len(solved)} of",
        f"{len(rows)} models, and is better than `auto` on {worse}.",
        "",
        "| model | variables | strategies | auto: CPU s | ms | gap | HiGHS: CPU s | wall s "
        "| over auto's | gap | end |",
        "| --- |" + " ---: |" * 9 + " --- |",
    ]
    for row in rows:
        cells = [row["model"], row.get("variables", ""), row.get("strategies", "")]
        ours, other = row.get("auto"), row.get("integer")
        cells += ["", "", ""]
        if ours is not None:
            cells[-3:] = [f"{ours['cpu_s']:.2f}", f"{1e3 * ours['cost']:.3f}", _gap(ours)]
        if ours is not None and other is not None:
            cells += [f"{other['cpu_s']:.1f}", f"{other['wall_s']:.1f}"]
            cells += [f"{other['cost'] / ours['cost'] - 1:.4%}", _gap(other), other["end"]]
        else:
            cells += ["", "", "", "", row.get("error", f"killed after {_PATIENCE * limit_s:g} s")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _gap(found: dict[str, Any]) -> str:
    bound = found["bound"]
    return f"{max(0.0, found['cost'] / bound - 1):.3%}" if 0 < bound < math.inf else "none"


def _case(name: str) -> Case:
    """One device of it; the shape is chosen later."""
    if name.startswith(OWN):
        return Case(name.removeprefix(OWN), "gcp_a100", 1, 1)
    return Case(f"flowvision:{name}", "gcp_a100", 1, 1, BATCH)


def _imported(name: str) -> None:
    """Import what tracing needs, which is told apart."""
    needed = ["autoddl.runtime.oneflow.models", "autoddl.runtime.oneflow.trace.trace"]
    for module in needed if name.startswith(OWN) else [*needed, "flowvision.models"]:
        importlib.import_module(module)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of what was measured."""
    shapes = [f"{nodes}x{gpus}" for nodes, gpus in SHAPES]
    plans = [row[shape] for row in rows for shape in shapes if shape in row]
    proven = sum(p["gap"] is not None and p["gap"] <= 1e-4 for p in plans)
    traced = [row for row in rows if "operators" in row]
    head = ["model", "operators", "opaque", "build s", "trace s", "ms an operator"]
    for shape in shapes:
        head += [f"{shape}: plan s", "gap", "a step ms", "closest scheme"]
    lines = [
        "# Models, planned",
        "",
        f"One model of each of flowvision's families, batch {BATCH}, and autoddl's at their own",
        f"batches, on `gcp_a100` (`make bench-models`, {datetime.now(timezone.utc):%Y-%m-%d}).",
        "CPU seconds; the gap to the lower bound of the search space; of the closest known scheme",
        "how many times our step it takes. Planning takes "
        f"{median(p['plan_s'] for p in plans):.1f} s in the median, at most",
        f"{max(p['plan_s'] for p in plans):.1f} s; {proven} of {len(plans)} plans have a gap of at "
        "most 0.01 %.",
        f"Tracing takes {median(map(_trace_ms, traced)):.2f} ms an operator in the median, at most",
        f"{max(map(_trace_ms, traced)):.2f}, after {median(r['start_s'] for r in traced):.1f} s of "
        "loading OneFlow and the seconds of building the model.",
        "",
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
    ]
    for row in rows:
        cells = [row["model"], row.get("operators", ""), row.get("opaque", "")]
        cells += ["", "", ""]
        if "operators" in row:
            cells[-3:] = [f"{row['build_s']:.1f}", f"{row['trace_s']:.1f}", f"{_trace_ms(row):.2f}"]
        for shape in shapes:
            cells += _cells(row.get(shape), row.get("error", ""))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _trace_ms(row: dict[str, Any]) -> float:
    return 1e3 * row["trace_s"] / row["operators"]


def _cells(plan: dict[str, Any] | None, error: str) -> list[str]:
    if plan is None:
        return [error, "", "", ""]
    gap = "none" if plan["gap"] is None else f"{plan['gap']:.2%}"
    closest = plan["closest"]
    told = "" if closest is None else f"{closest[0]} {closest[1] / plan['seconds']:.2f}"
    return [f"{plan['plan_s']:.1f}", gap, f"{plan['seconds'] * 1e3:.2f}", told]


def main() -> None:
    names = [*FAMILIES, *(OWN + name for name in SHIPPED)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(names), help="names of models")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "models.md"
    )
    parser.add_argument("--integer", type=float, help="seconds: compare searches instead")
    parser.add_argument("--shape", default="2x8", help="nodes x devices, with --integer")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    nodes, gpus = map(int, asked.shape.split("x"))
    if asked.one:
        limit_s = asked.integer
        row = (
            measured(asked.one) if limit_s is None else searched(asked.one, limit_s, (nodes, gpus))
        )
        print(json.dumps(row))
        return
    rows = []
    for name in asked.only.split(","):
        command = [sys.executable, "-m", "benchmarks.models", "--one", name]
        if asked.integer is not None:
            command += ["--integer", str(asked.integer), "--shape", asked.shape]
        # HiGHS looks at its clock seldom
        most_s = None if asked.integer is None else _PATIENCE * asked.integer
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            try:
                out, told = child.communicate(timeout=most_s)
            except subprocess.TimeoutExpired:
                child.kill()
                out, told = child.communicate()
        last = out.decode().splitlines()[-1:] or [""]
        try:
            rows.append(json.loads(last[0]))
        except ValueError:
            error = (told.decode().splitlines() or ["failed"])[-1]
            rows.append({"model": name, "error": error})
        print(rows[-1], flush=True)
    if asked.integer is None:
        whole = table(rows)
    else:
        whole = search_table(rows, asked.integer, (nodes, gpus))
    write_atomically(asked.output, whole)


if __name__ == "__main__":
    main()
