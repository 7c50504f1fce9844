"""Planning time: wall, CPU, memory, gap, where the time goes, and how it grows.

python -m benchmarks.planning_speed [--cases vgg13_64,gpt_36b_256] [--output benchmarks/results]

Each case is traced and planned in a process of its own, three times, and the run of median CPU
seconds counts; tracing is not counted. Those that show growth are short: they are run nine times,
in turn. Beside each run a piece of work that never changes is timed, as what a second is worth
differs by machine and hour.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autoddl.planner.options import PlanOptions
from autoddl.plans.figures import figures

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """A model on a machine; `target_s` is what is asked for, in seconds on two cores."""

    model: str
    machine: str
    nodes: int
    gpus: int
    batch: int | None = None
    target_s: float | None = None
    layers: int | None = None  # of a GPT of width 4096 instead of `model`
    free: bool = False  # without a memory limit
    gap: float | None = None  # that the search may leave


CASES = {
    "vgg13_16": Case("vgg13", "piz_daint", 16, 1, 128),
    "vgg13_32": Case("vgg13", "piz_daint", 32, 1, 256),
    "vgg13_64": Case("vgg13", "piz_daint", 64, 1, 512, 0.5),
    "gpt_6_8b_64": Case("gpt_6_8b", "piz_daint", 64, 1),
    "gpt_16b_128": Case("gpt_16b", "piz_daint", 128, 1),
    "gpt_36b_256": Case("gpt_36b", "piz_daint", 256, 1, None, 2.0),
    "gpt_36b_256_free": Case("gpt_36b", "piz_daint", 256, 1, None, 2.0, free=True),
    "gpt_0_35b_2x16": Case("gpt_0_35b", "gcp_a100", 2, 16),
    "gpt_5_8b_2x16": Case("gpt_5_8b", "gcp_a100", 2, 16),
    "gpt_1_block_64x4": Case("", "gcp_a100", 64, 4, 1024, 1.0, 1),
    "gpt_32_blocks_64x4": Case("", "gcp_a100", 64, 4, 1024, 5.0, 32),
    "gpt_64_blocks_64x4": Case("", "gcp_a100", 64, 4, 1024, None, 64),
    "gpt3_175b_128x8": Case("gpt3_175b", "gcp_a100", 128, 8, None, 10.0),
    "gpt3_175b_1024x8": Case("gpt3_175b", "gcp_a100", 1024, 8, None, 30.0),
}
CASES |= {
    f"{name}_gap_1": replace(CASES[name], gap=0.01)
    for name in ("gpt_36b_256", "gpt_32_blocks_64x4", "gpt3_175b_128x8", "gpt3_175b_1024x8")
}
# Each with twice the blocks of the one before, and each on twice the nodes; without a limit.
DOUBLINGS = {
    f"gpt_{layers}_blocks_64x4_free": Case("", "gcp_a100", 64, 4, 1024, None, layers, True)
    for layers in (4, 8, 16, 32, 64)
}
GROWING = {
    f"gpt_1_block_{nodes}x4_free": Case("", "gcp_a100", nodes, 4, 1024, None, 1, True)
    for nodes in (8, 16, 32, 64, 128, 256)
}
CASES |= DOUBLINGS | GROWING
RUNS, GROWTH_RUNS = 3, 9


def graph_of(case: Case) -> Any:
    """The traced graph of a case."""
    from autoddl.runtime.oneflow.trace.entries import trace_entry

    if case.layers is None:
        return trace_entry(case.model, case.batch)
    import oneflow

    from autoddl.runtime.oneflow.models.blank import blank
    from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss
    from autoddl.runtime.oneflow.trace.job.meta import storage_free
    from autoddl.runtime.oneflow.trace.trace import trace

    assert case.batch is not None
    with storage_free():
        model = Gpt(case.layers, 4096, 32, 1024)
    tokens = blank(case.batch, 1024, dtype=oneflow.int64)
    return trace(model, tokens, tokens, loss=next_token_loss)


class Phases:
    """CPU seconds by phase, by wrapping the functions that make them up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside: list[str] = []

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            with self._phase(name):
                return function(*args, **options)

        return timed

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.process_time()
        self._inside.append(name)
        try:
            yield
        finally:
            spent = time.process_time() - started
            self._inside.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            if self._inside:  # what an inner phase spends is not the outer one's
                outer = self._inside[-1]
                self.seconds[outer] = self.seconds.get(outer, 0.0) - spent


def _reference_s() -> float:
    """Seconds of a fixed mixture of small and large arrays and of plain Python; median of five."""
    import numpy as np

    rng = np.random.default_rng(0)
    small, large = rng.random(1_000), rng.random(300_000)
    order = rng.permutation(len(small))

    def work() -> float:
        started = time.perf_counter()
        for _ in range(4_000):
            np.minimum(small + 1.0, small.take(order)).argmin()
        large.argsort()
        counts: dict[int, int] = {}
        for n in range(200_000):
            counts[n % 1_000] = counts.get(n % 1_000, 0) + n
        return time.perf_counter() - started

    return sorted(work() for _ in range(5))[2]


def _measured(case: Case) -> dict[str, Any]:
    """Plan one case in this process."""
    from autoddl.cluster.spec import Cluster
    from autoddl.planner import mesh, planner, realize, schemes
    from autoddl.planner.tables.tables import TableBuilder
    from autoddl.sbp.path_bounds import PathBounds
    from autoddl.sbp.redistribute import PathTable
    from autoddl.search import elimination, pareto_elimination, reduced_costs

    graph = graph_of(case)
    cluster = Cluster.load(case.machine).with_shape(nodes=case.nodes, gpus_per_node=case.gpus)
    phases = Phases()
    for owner, name, phase in (
        (TableBuilder, "prepare", "strategies"),
        (TableBuilder, "build", "tables"),
        (PathTable, "seconds", "path prices"),
        (PathBounds, "seconds", "bounds of paths"),
        (PathBounds, "row_seconds", "bounds of paths"),
        (elimination, "eliminate", "elimination"),
        (reduced_costs.ReducedCosts, "__init__", "reduced costs"),
        (pareto_elimination, "least_within", "Pareto elimination"),
        (realize, "required_bytes", "fullest moment"),
        (realize, "place", "placements"),
        (mesh, "write_stage", "writing the plan"),
    ):
        function = getattr(owner, name)
        timed = phases.wrapped(phase, function)
        setattr(owner, name, timed)
        for module in [m for key, m in sys.modules.items() if key.startswith("autoddl.")]:
            if vars(module).get(name) is function:
                setattr(module, name, timed)
    strategies: list[dict[str, int]] = []
    prepare = TableBuilder.prepare
    axes = cluster.mesh.num_axes

    def counted(builder: TableBuilder) -> None:
        prepare(builder)
        tables = builder.group_tables
        kinds = [len(table.composites) for table in tables]
        strategies.append(
            {
                "strategies": sum(len(table.assign) for table in tables),
                "axis_strategies": sum(kind * axes for kind in kinds),
                "product_strategies": sum(kind**axes for kind in kinds),
            }
        )

    setattr(TableBuilder, "prepare", counted)  # noqa: B010
    gc.collect()  # what tracing left to be looked at is tracing's
    reference_s = _reference_s()
    wall, cpu = time.perf_counter(), time.process_time()
    failure, plan = "", None
    try:
        limit = math.inf if case.free else None
        plan = planner.find_plan(
            graph,
            cluster,
            PlanOptions(
                baselines=False,
                memory_limit_bytes=limit,
                gap=case.gap,
                overlap=False,  # serial steps, as in the record
            ),
        )
    except ValueError as error:
        failure = str(error)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    phases.seconds["rest"] = cpu - sum(phases.seconds.values())
    results: dict[str, Any] = {
        "operators": len(graph.ops),
        "axes": axes,
        **max(strategies, key=lambda counts: counts["strategies"], default={}),
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "reference_s": round(reference_s, 3),
        "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
        "target_s": case.target_s,
        "phases_cpu_s": {name: round(s, 3) for name, s in sorted(phases.seconds.items())},
        "failure": failure,
    }
    if plan is not None:
        bound = plan.stage.search.lower_bound_s
        results |= {
            "iteration_s": figures(plan).cost.iteration_s,
            "micro_batches": plan.micro_batches,
            "lower_bound_s": bound,
            "algorithm": plan.stage.search.algorithm,
            "gap": None if bound is None else max(0.0, figures(plan).cost.iteration_s / bound - 1),
        }
        if not case.free and case.gap is None:
            started = time.perf_counter()
            schemes.baseline_plans(graph, cluster, PlanOptions(overlap=False))
            results["schemes_s"] = round(time.perf_counter() - started, 3)
    return results


def _table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| case | date | load | reference s | wall s | CPU s | asked s | peak GB | micro-batches "
        "| iteration s | gap | known schemes, wall s | most CPU s spent on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in results.items():
        phases = sorted(found["phases_cpu_s"].items(), key=lambda item: -item[1])[:3]
        gap = found.get("gap")
        cells = [
            name,
            found["date"],
            str(found.get("load_average", "?")),
            f"{found['reference_s']:.3f}" if "reference_s" in found else "",
            f"{found['wall_s']:.2f}",
            f"{found['cpu_s']:.2f}",
            "" if found["target_s"] is None else f"{found['target_s']:g}",
            f"{found['peak_memory_gb']:.2f}",
            str(found.get("micro_batches", "")),
            f"{found['iteration_s']:.6g}" if "iteration_s" in found else found["failure"][:60],
            "" if gap is None else ("0" if gap < 4e-6 else f"{100 * gap:.3f} %"),
            f"{found['schemes_s']:.2f}" if "schemes_s" in found else "",
            ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in phases),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_RUNS_TEXT = f"Medians of {GROWTH_RUNS} runs, the cases in turn."
_STRATEGIES_TEXT = (
    "Strategies of the distinct groups of operators: on the atomic axes one by one (the sum over "
    "axes of the signatures on one), in the full product over the axes, and those listed, after "
    "what does not divide and what the space leaves out."
)
_STRATEGY_UNITS = {
    "on the axes": "axis_strategies",
    "in the product": "product_strategies",
    "listed": "strategies",
}


def _growth(results: dict[str, dict[str, Any]]) -> str:
    """How time grows with equal blocks and with strategies, where those cases were run."""
    text = ""
    for title, cases, units, about in (
        ("Twice the blocks", DOUBLINGS, {"operators": "operators"}, _RUNS_TEXT),
        ("Twice the nodes", GROWING, _STRATEGY_UNITS, f"{_RUNS_TEXT} {_STRATEGIES_TEXT}"),
    ):
        known = [(name, results[name]) for name in cases if "axes" in results.get(name, {})]
        if len(known) < 2:
            continue
        text += f"\n\n{title}, no memory limit. {about}\n\n"
        names = [f"{unit} | times | ms for each" for unit in units]
        text += f"| case | CPU s | times | {' | '.join(names)} |\n"
        text += f"| --- | --- | --- |{' --- | --- | --- |' * len(units)}"
        before = None
        for name, found in known:
            cells = [name, f"{found['cpu_s']:.2f}", _times(found, before, "cpu_s")]
            for unit in units.values():
                count = f"{found[unit]:.3g}" if found[unit] > 1e6 else str(found[unit])
                cells += [count, _times(found, before, unit)]
                cells.append(f"{1e3 * found['cpu_s'] / found[unit]:.2g}")
            text += f"\n| {' | '.join(cells)} |"
            before = found
    return text


def _times(found: dict[str, Any], before: dict[str, Any] | None, what: str) -> str:
    return "" if before is None else f"{found[what] / before[what]:.2f}"


def _processor() -> str:
    """Its name and cache, where the system says them."""
    path = Path("/proc/cpuinfo")
    known: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        key, _, value = line.partition(":")
        known[key.strip()] = value.strip()
    return ", ".join(known[key] for key in ("model name", "cache size") if key in known)


def _in_process(name: str, timeout_s: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.planning_speed", "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _batches(names: list[str]) -> list[tuple[list[str], int]]:
    """Cases to be run in turn, and how often; those of one growth together."""
    growths = [[name for name in names if name in growth] for growth in (DOUBLINGS, GROWING)]
    alone = [name for name in names if name not in DOUBLINGS | GROWING]
    return [([name], RUNS) for name in alone] + [(g, GROWTH_RUNS) for g in growths if g]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_measured(CASES[args.one])))
        return
    from autoddl._files import write_atomically

    path = args.output / "planning_speed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = json.loads(path.read_text()) if path.exists() else {"date": "", "cases": {}}
    known = {name: {"date": file["date"], **case} for name, case in file["cases"].items()}
    for names, runs in _batches(args.cases.split(",")):
        measured: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        try:
            for name in names * runs:  # in turn, so that a slow hour is one for all
                measured[name].append(_in_process(name, args.timeout))
        except subprocess.TimeoutExpired:
            print(f"{', '.join(names)}: not done, as a run took more than {args.timeout:g} s")
            continue
        load, date = round(os.getloadavg()[0], 1), datetime.now(timezone.utc).date().isoformat()
        for name, found in measured.items():
            known[name] = sorted(found, key=lambda run: run["cpu_s"])[runs // 2]
            known[name] |= {"load_average": load, "date": date}
        ordered = {case: known[case] for case in CASES if case in known}
        machine = {
            "cpus": os.cpu_count(),
            "processor": _processor(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        }
        text = json.dumps({"machine": machine, "date": date, "cases": ordered}, indent=1)
        write_atomically(path, text)
        note = (
            f"Planning time, {machine['cpus']} CPUs ({machine['processor']}), tracing apart. "
            "Pricing the known schemes, each at its best, is told by itself. A row of an earlier "
            "date is of that day's code and machine. "
            "Load: the average of the machine in the minute to the end of a case's runs, these "
            "included; where it exceeds what a case can cause itself (1 and a bit), others ran "
            "beside it, and both times are longer for it. Reference: what a fixed piece of work "
            "took just before, to compare rows of different machines and hours. "
            f"Of {RUNS} runs the median counts. Cases that end in _gap_1 allow a gap of 1 %.\n\n"
        )
        text = note + _table(ordered) + _growth(ordered) + "\n"
        write_atomically(path.with_suffix(".md"), f"# Planning speed\n\n{text}")
        print(*_table({name: known[name] for name in names}).splitlines()[2:], sep="\n", flush=True)


if __name__ == "__main__":
    main()
