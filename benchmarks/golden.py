"""What the planner finds, held against a record: a change must not make a plan worse unseen.

python -m benchmarks.golden [--only NAME,...] [--graphs FOLDER] [--record] [--budget SECONDS]

For every case (those of the planning benchmark, the models that come with autoddl, ten families of
flowvision, and a dozen plans with pipeline stages) the record holds the predicted seconds of an
iteration, the search's lower bound and gap, the number of micro-batches and the bytes that a device
needs. They are of serial steps, which are proven optimal; some are planned once more as they are by
default, with overlap (`NAME_overlapped`). A case fails if its plan has become slower by more than
`SLOWER`, or if its gap has grown beyond what was asked. `--record` writes the record anew for the
cases that are run; `--graphs` keeps traced graphs in a folder for the next run. CPU seconds of
planning are recorded to be read, not compared, as they differ by machine.

With `--budget` each case is planned within so many seconds instead, with overlap, and nothing is
recorded: it fails if its planning takes more than `LATE_S` CPU seconds longer (run it alone), and
the plan's seconds are shown beside those of the record (of serial steps), which had all the time it
wanted.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from benchmarks.planning_speed import CASES as PLANNING_CASES
from benchmarks.planning_speed import graph_of as planning_graph

RECORD = Path(__file__).parent / "results" / "golden.json"
SLOWER = 5e-4  # a plan may be so much slower within the gap that was asked, relative
LATE_S = 1.0  # after its budget planning may end: what cannot be left half done takes as long
GAP = 5e-4  # the gap that the search may leave by default, and so what may come and go


@dataclass(frozen=True)
class Case:
    """`graph` names what is traced: a planning case, module:function, or flowvision:name."""

    graph: str
    machine: str
    nodes: int
    gpus: int
    batch: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _cases() -> dict[str, Case]:
    cases = {
        name: Case(
            f"planning:{name}", c.machine, c.nodes, c.gpus, c.batch,
            {"memory_limit_bytes": math.inf if c.free else None, "gap": c.gap, "baselines": False},
        )
        for name, c in PLANNING_CASES.items()
    }  # fmt: skip
    for model in ("alexnet_small", "dlrm_small", "gpt_small", "vgg13_small"):
        cases[f"{model}_2x2"] = Case(model, "laptop", 2, 2)
    for model in ("alexnet", "dlrm"):
        cases[f"{model}_2x8"] = Case(model, "gcp_a100", 2, 8)
    for model in (
        "resnet50", "densenet121", "res2net101_26w_4s", "swin_tiny_patch4_window7_224",
        "cswin_base_224", "pvt_large", "hrnet_w18", "efficientnet_b0", "vit_small_patch16_224",
        "crossformer_tiny_patch4_group7_224",
    ):  # fmt: skip
        cases[f"{model}_2x8"] = Case(f"flowvision:{model}", "gcp_a100", 2, 8, 32)
    small = ("gpt_small", "laptop", 2, 2)
    for schedule in ("gpipe", "1f1b", "eager-1f1b", "zb-h1"):
        cases[f"gpt_small_{schedule}"] = Case(*small, None, {"stages": 2, "schedule": schedule})
    interleaved = {"stages": 2, "schedule": "interleaved-1f1b", "chunks": 2}
    cases["gpt_small_interleaved"] = Case(*small, None, interleaved)
    cases["gpt_small_delay"] = Case(*small, None, {"stages": 2, "delay": 1})
    cases["gpt_small_auto"] = Case(*small, None, {"stages": "auto"})
    few = {"stages": 2, "micro_batches": 8}
    cases["gpt_0_35b_2x8"] = Case("gpt_0_35b", "gcp_a100", 2, 8)
    cases["gpt_0_35b_2_stages"] = Case("gpt_0_35b", "gcp_a100", 2, 16, 256, few)
    cases["gpt_0_35b_4_stages"] = Case(
        "gpt_0_35b", "gcp_a100", 2, 16, 256, {"stages": 4, "micro_batches": 16}
    )
    cases["vgg13_2_stages"] = Case("vgg13", "gcp_a100", 2, 4, 128, {"stages": 2})
    cases["dlrm_2_stages"] = Case("dlrm", "gcp_a100", 2, 4, None, {"stages": 2})
    for name in _OVERLAPPED:
        case = cases[name]
        cases[name + OVERLAPPED] = replace(case, options={**case.options, "overlap": True})
    return cases


OVERLAPPED = "_overlapped"
_OVERLAPPED = (
    "vgg13_16", "gpt_6_8b_64", "gpt_16b_128", "gpt_36b_256", "gpt_36b_256_free", "gpt_0_35b_2x16",
    "gpt_5_8b_2x16", "gpt_1_block_64x4", "gpt_32_blocks_64x4", "gpt3_175b_128x8",
    "alexnet_small_2x2", "dlrm_small_2x2", "gpt_small_2x2", "vgg13_small_2x2", "alexnet_2x8",
    "dlrm_2x8", "resnet50_2x8", "densenet121_2x8", "res2net101_26w_4s_2x8",
    "swin_tiny_patch4_window7_224_2x8", "cswin_base_224_2x8", "pvt_large_2x8", "hrnet_w18_2x8",
    "efficientnet_b0_2x8", "vit_small_patch16_224_2x8", "crossformer_tiny_patch4_group7_224_2x8",
    "gpt_small_1f1b", "gpt_small_interleaved", "gpt_small_auto", "gpt_0_35b_2_stages",
    "gpt_0_35b_4_stages", "vgg13_2_stages", "dlrm_2_stages",
)  # fmt: skip
CASES = _cases()
# That take too long without a budget to be in the record.
ONLY_WITH_BUDGET = {
    "gpt3_175b_8_stages": Case("gpt3_175b", "gcp_a100", 128, 8, None, {"stages": 8}),
}


def built(case: Case) -> Any:
    """(model, example, loss) of a case, without memory for the model's parameters."""
    from autoddl.runtime.oneflow.trace.job.meta import storage_free

    kind, _, name = case.graph.partition(":")
    if kind != "flowvision":
        from autoddl.runtime.calling import as_arguments
        from autoddl.runtime.entry import call_entry

        with storage_free():
            model, example, loss = call_entry(case.graph, case.batch)
        return model, as_arguments(example), loss
    import oneflow
    from flowvision import models

    from autoddl.runtime.oneflow.models.blank import blank

    assert case.batch is not None
    with storage_free():
        model = getattr(models, name)()
    side = 299 if name.startswith("inception") else 224
    images, labels = blank(case.batch, 3, side, side), blank(case.batch, dtype=oneflow.int64)

    def first_loss(output: Any, labels: Any) -> Any:
        """Of the first output, where a model has auxiliary ones."""
        first = output[0] if isinstance(output, (tuple, list)) else output
        return oneflow.nn.functional.cross_entropy(first, labels)

    return model, (images, labels), first_loss


def graph_of(case: Case) -> Any:
    """The traced graph of a case."""
    kind, _, name = case.graph.partition(":")
    if kind == "planning":
        return planning_graph(PLANNING_CASES[name])
    from autoddl.runtime.oneflow.trace.trace import trace

    model, example, loss = built(case)
    return trace(model, *example, loss=loss)


def measured(name: str, graphs: Path | None, budget: float | None) -> dict[str, Any]:
    """Plan one case in this process."""
    import autoddl

    case = (CASES | ONLY_WITH_BUDGET)[name]
    file = None if graphs is None else graphs / f"{name.removesuffix(OVERLAPPED)}.json"
    if file is not None and file.exists():
        graph = autoddl.Graph.load(file)
    else:
        graph = graph_of(case)
        if file is not None:
            graph.save(file)
    cluster = autoddl.Cluster.load(case.machine).with_shape(
        nodes=case.nodes, gpus_per_node=case.gpus
    )
    autoddl.plan  # noqa: B018 (imports the planner)
    started = time.process_time()
    options = {"overlap": budget is not None, **case.options}
    plan = autoddl.plan(graph, cluster, **options, budget_seconds=budget)
    return {"cpu_s": round(time.process_time() - started, 2), **_figures(plan)}


def _figures(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"micro_batches": plan.micro_batches}
    if plan.num_stages > 1:
        needed = max(figures(plan).memory_bytes)
        found |= {
            "seconds": figures(plan).iteration_s,
            "parts": len(plan.stages),
            "bound": None,
            "gap": None,
        }
    else:
        needed = stage_figures(plan.stage).peak_bytes or figures(plan).cost.memory_bytes
        found |= {
            "seconds": figures(plan).cost.iteration_s,
            "parts": 1,
            "bound": plan.stage.search.lower_bound_s,
            "gap": stage_figures(plan.stage).gap,
        }
    return {**found, "needed_bytes": needed}


def worse(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    """What has become worse; "" if nothing has."""
    if new["seconds"] > old["seconds"] * (1 + SLOWER):
        slower = new["seconds"] / old["seconds"] - 1
        return f"{slower:.3%} slower: {old['seconds']:.8g} s before, {new['seconds']:.8g} s now"
    asked = max(GAP, CASES[name].options.get("gap") or 0.0)
    if old["gap"] is not None and (
        new["gap"] is None or new["gap"] > max(asked, old["gap"] * 1.01)
    ):
        return f"the gap was {old['gap']:.3%} and is {new['gap']}"
    return ""


def late(budget: float, new: dict[str, Any]) -> str:
    """Whether planning took longer than its budget allows; "" if not."""
    over = new["cpu_s"] - budget
    return f"{over:.1f} s after its budget" if over > LATE_S else ""


def _in_process(name: str, graphs: Path | None, budget: float | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.golden", "--one", name]
    if budget is not None:
        command += ["--budget", str(budget)]
    if graphs is not None:
        command += ["--graphs", str(graphs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """1 if a plan has become worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="names of cases")
    parser.add_argument("--budget", type=float, help="seconds of planning for each case")
    parser.add_argument("--graphs", type=Path, help="folder in which traced graphs are kept")
    parser.add_argument("--record", action="store_true", help="write the record anew")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.graphs is not None:
        args.graphs.mkdir(parents=True, exist_ok=True)
    if args.one:
        print(json.dumps(measured(args.one, args.graphs, args.budget)))
        return 0
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    failed = 0
    every = [*CASES]
    if args.budget is not None:
        every = [n for n in [*CASES, *ONLY_WITH_BUDGET] if not n.endswith(OVERLAPPED)]
    for name in args.only.split(",") if args.only else every:
        new = _in_process(name, args.graphs, args.budget)
        old = record.get(name)
        if args.budget is not None:
            said = late(args.budget, new)
        else:
            said = "" if old is None or args.record else worse(name, old, new)
        failed += bool(said)
        change = "" if old is None else f"{new['seconds'] / old['seconds'] - 1:+.4%} "
        gap = "-" if new["gap"] is None else f"{new['gap']:.4%}"
        print(
            f"{name:38} {new['seconds']:.8g} s {change}gap {gap} x{new['micro_batches']} "
            f"cpu {new['cpu_s']} s{' (' + str(old['cpu_s']) + ')' if old else ''} {said}",
            flush=True,
        )
        if args.record and args.budget is None:
            record[name] = new
            RECORD.write_text(json.dumps({k: record[k] for k in CASES if k in record}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
