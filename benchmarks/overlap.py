"""A step of our executor beside OneFlow's own, in turns, on this machine with real computation.

`python -m benchmarks.overlap`. On one process a plain loop (forward, backward, SGD) beside the plan
for one device; on two and four OneFlow's `DistributedDataParallel`, each process with its rows,
beside the data-parallel plan and the searched one. All train in one job and take turns step by
step, so that what else the machine does hits all alike; the median of the steps counts, and of the
ranks the slowest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.runtime.jobs.launch import run_processes

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "overlap.md"
MACHINE = "laptop"
WARM = 3  # steps before those that are timed
STEPS = {"tiny GPT": 25, "ResNet18": 6, "GPT": 4}
WHAT = {
    "tiny GPT": "2 layers of width 64, 16 sequences of 32",
    "ResNet18": "32 images of 32 x 32",
    "GPT": "4 layers of width 384, 16 sequences of 128",
}
Batch = tuple[Any, Any]


def model_of(name: str) -> tuple[Any, Batch, Callable[..., Any]]:
    """A model with the same values on every rank, a global batch, and the loss."""
    import flowvision
    import oneflow as flow

    from autoddl.runtime.oneflow.models.gpt import Gpt, gpt_small, next_token_loss

    flow.manual_seed(0)
    if name == "ResNet18":
        images, labels = flow.randn(32, 3, 32, 32), flow.randint(0, 10, (32,))
        model = flowvision.models.resnet18(num_classes=10)
        return model, (images, labels), flow.nn.CrossEntropyLoss()
    if name == "GPT":
        model, rows, length = Gpt(4, 384, 6, 128, vocabulary=256), 16, 128
    else:
        (model, _, _), rows, length = gpt_small(), 16, 32
    tokens = flow.randint(0, 256, (rows, length))
    return model, (tokens, tokens), next_token_loss


def own_loop(name: str, rank: int, size: int) -> Callable[[], Any]:
    """A step as one writes it in OneFlow."""
    import oneflow as flow

    model, batch, loss = model_of(name)
    if size > 1:
        model = flow.nn.parallel.DistributedDataParallel(model)
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)
    rows = batch[0].shape[0] // size
    x, target = (t[rank * rows : (rank + 1) * rows].clone() for t in batch)

    def step() -> Any:
        found = loss(model(x), target)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    return step


def planned(name: str, size: int) -> dict[str, Callable[[], Any]]:
    """A step of our executor by the plans that there are: data parallel, and the best found."""
    import oneflow as flow

    from autoddl.cluster import Cluster
    from autoddl.planner.baselines import data_parallel
    from autoddl.planner.options import PlanOptions
    from autoddl.planner.planner import find_plan
    from autoddl.plans import Plan
    from autoddl.runtime.jobs.agreement import share_text
    from autoddl.runtime.oneflow.backend import OneFlow
    from autoddl.runtime.oneflow.trace.trace import trace_with_state
    from autoddl.runtime.oneflow.trainer import build_trainer

    cluster = Cluster.load(MACHINE).with_shape(1, size)
    options = PlanOptions(
        optimizer="sgd", micro_batches=1, zero=False, batch_norm="shard", overlap=True
    )
    steps: dict[str, Callable[[], Any]] = {}
    for kind in ("searched",) if size == 1 else ("searched", "data parallel"):
        model, batch, loss = model_of(name)  # for each, as trainers that take turns share nothing
        traced = trace_with_state(model, *batch, loss=loss)
        graph, given = traced.graph, dict[str, Any]()
        if kind == "data parallel":
            given = {"space": data_parallel(graph)}

        def make(graph: Any = graph, given: dict[str, Any] = given) -> str:
            return find_plan(graph, cluster, options, **given).dumps()

        plan = Plan.loads(share_text(make, OneFlow()))
        trainer = build_trainer(traced, plan, lambda p: flow.optim.SGD(p, lr=1e-3))
        steps[kind] = lambda step=trainer.step, batch=batch: step(*batch)
    return steps


def worker(name: str, folder: str) -> None:
    """One rank: times all steps of a model in turns, and writes the medians."""
    import oneflow as flow

    from autoddl.runtime.jobs.guard import install_guard, rank, world_size

    install_guard()
    everyone = {"OneFlow": own_loop(name, rank(), world_size()), **planned(name, world_size())}
    seconds: dict[str, list[float]] = {kind: [] for kind in everyone}
    for number in range(WARM + STEPS[name]):
        for kind, step in everyone.items():
            flow._oneflow_internal.eager.Sync()
            started = time.perf_counter()
            float(step())
            flow._oneflow_internal.eager.Sync()
            if number >= WARM:
                seconds[kind].append(time.perf_counter() - started)
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    Path(folder, f"{rank()}.json").write_text(json.dumps(medians))


def measure(name: str, size: int) -> dict[str, float]:
    """Median seconds of a step, of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(HERE / "overlap.py"), "--worker", name, folder]
        environment = {"PYTHONPATH": str(HERE.parent), "GLOG_minloglevel": "3"}
        if run_processes(command, size, environment, output=sys.stderr):
            raise RuntimeError(f"{name} on {size} processes failed")
        ranks = [json.loads(file.read_text()) for file in sorted(Path(folder).iterdir())]
    return {kind: max(found[kind] for found in ranks) for kind in ranks[0]}


def table(rows: Sequence[tuple[str, int, dict[str, float]]]) -> str:
    """Markdown."""
    lines = [
        "# A step of our executor beside OneFlow's own",
        "",
        "Milliseconds of a step by `python -m benchmarks.overlap` (make bench-overlap), taken in",
        "turns in one job, medians; in brackets, times OneFlow's: a plain loop on one process,",
        "`DistributedDataParallel` on more.",
        "",
        "| model | processes | OneFlow | data-parallel plan | searched plan |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, size, found in rows:
        own = found["OneFlow"]
        cells = [
            f"{found[kind] * 1e3:.1f} ({found[kind] / own:.2f})" if kind in found else ""
            for kind in ("data parallel", "searched")
        ]
        lines.append(f"| {name}: {WHAT[name]} | {size} | {own * 1e3:.1f} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS))
    options.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4])
    options.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    given = options.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    rows = [(name, n, measure(name, n)) for name in given.only for n in given.sizes]
    text = table(rows)
    print(text)
    if given.save:
        write_atomically(RESULTS, text)


if __name__ == "__main__":
    main()
