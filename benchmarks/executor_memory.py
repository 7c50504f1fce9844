"""The executor's memory on this machine: resident bytes of a step against the prediction.

`python -m benchmarks.executor_memory`. Each case trains on one device, or as a pipeline on one
device a stage, in processes of its own: the peak of each one's resident memory in a step, less what
it held before the model was there, and less the model's own parameters (the executor works on
copies) and inputs that other stages read.

    held   what the process takes; OneFlow's allocator keeps freed blocks for later tensors
    live   the same if it gives free blocks back after every operator: the tensors themselves, and
           the rest of the blocks that they share

OneFlow allocates blocks of whole 2 MB where a tensor has 10 MB or more, and of 2 or 20 MB for
smaller ones to share, so the tensors of the cases are large, or few.
"""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import functools
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cost.recompute import Checkpointing
from autoddl.cost.required import memory_peak
from autoddl.plans.stage_figures import StageFigures, stage_figures
from autoddl.runtime.jobs.launch import run_processes

ROOT = Path(__file__).parents[1]
LAPTOP = "laptop"


@dataclass(frozen=True)
class Case:
    """A model, micro-batches, the optimizer, what is run again, and of a pipeline its schedule.

    shares: of a host that has three times the memory and speed of the other, and of that
    at_once: of a plan on two hosts that overlaps, how many micro-batches are in flight; 0 for none
    """

    model: str
    micro_batches: int
    optimizer: str
    checkpointing: Checkpointing = "none"
    stages: int = 1
    schedule: str = "1f1b"
    shares: tuple[int, ...] = ()
    at_once: int = 0

    @property
    def processes(self) -> int:
        return len(self.shares) or (2 if self.at_once else self.stages)


CASES = (
    Case("mlp", 1, "sgd"),
    Case("mlp", 2, "adam"),
    Case("mlp", 1, "sgd", "all"),
    Case("gpt", 1, "sgd"),
    Case("attention", 1, "momentum"),
    Case("deep", 1, "sgd"),
    Case("unet", 1, "sgd"),
    Case("mlp", 4, "sgd", stages=2),
    Case("mlp", 4, "adam", stages=2, schedule="gpipe"),
    Case("mlp", 4, "sgd", "all", stages=2, schedule="gpipe"),
    Case("deep", 4, "momentum", stages=2),
    Case("mlp", 2, "adam", shares=(3, 1)),
    Case("deep", 1, "sgd", shares=(3, 1)),
    Case("mlp", 1, "sgd", at_once=1),
    Case("deep", 1, "sgd", at_once=1),
    Case("mlp", 2, "adam", at_once=2),
    Case("deep", 4, "sgd", at_once=2),
)


def resident(what: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {what} in /proc/self/status")


def model_of(name: str, micro_batches: int) -> Any:
    """A model, its inputs and target, and its loss."""
    import oneflow as flow
    import oneflow.nn as nn

    from autoddl.runtime.oneflow.models.gpt import Gpt, next_token_loss

    if name == "mlp":
        layers: list[Any] = []
        for _ in range(6):
            layers += [nn.Linear(2048, 2048), nn.ReLU()]
        rows = 2048 * micro_batches
        data = flow.randn(rows, 2048), flow.randn(rows, 2048)
        return nn.Sequential(*layers), data, nn.MSELoss()
    if name == "unet":
        images = 48 * micro_batches, 1, 128, 128
        return unet(), (flow.randn(*images), flow.randn(*images)), nn.MSELoss()
    if name == "gpt":
        model, batch = Gpt(1, 1024, 8, 512, vocabulary=2048), 8 * micro_batches
    else:
        model, batch = Gpt(4 if name == "deep" else 2, 512, 4, 256, vocabulary=64), 32
    tokens = flow.randint(0, 64, (batch, model.position.shape[0]))
    return model, (tokens, tokens), next_token_loss


def unet() -> Any:
    """Down twice by pooling, up twice by transposed convolutions that meet what was there."""
    import oneflow as flow
    import oneflow.nn as nn

    def twice(before: int, after: int) -> Any:
        layers: list[Any] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([twice(1, 16), twice(16, 32)])
            self.bottom = twice(32, 64)
            self.up = nn.ModuleList(
                [nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, 16, 2, stride=2)]
            )
            self.join = nn.ModuleList([twice(64, 32), twice(32, 16)])
            self.last = nn.Conv2d(16, 1, 1)

        def forward(self, x: Any) -> Any:
            left = []
            for block in self.down:
                left.append(block(x))
                x = nn.functional.max_pool2d(left[-1], 2)
            x = self.bottom(x)
            for up, join in zip(self.up, self.join, strict=True):
                x = join(flow.cat([left.pop(), up(x)], dim=1))
            return self.last(x)

    return UNet()


def give_back() -> None:
    """Let the allocator return free blocks before and after every operator of the executor."""
    import oneflow as flow

    from autoddl.runtime.execution import executor
    from autoddl.runtime.execution.gradients import Gradients
    from autoddl.runtime.oneflow.backend import OneFlow

    def returning(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            flow._oneflow_internal.EmptyCache()
            result = function(*arguments, **options)
            flow._oneflow_internal.EmptyCache()
            return result

        return wrapped

    for name in ("run_kernel", "product", "_add"):
        setattr(executor, name, returning(getattr(executor, name)))
    Gradients.add = returning(Gradients.add)
    OneFlow.set_gradient = returning(OneFlow.set_gradient)


def measure(case: Case, live: bool) -> dict[str, Any]:
    """Predicted and measured bytes of one case, in this process."""
    import oneflow as flow

    if live:
        give_back()

    import autoddl
    from autoddl.runtime.oneflow.trace.entries import optimizer_maker

    cluster = autoddl.Cluster.load(LAPTOP).with_shape(case.processes, 1)
    if case.shares:
        cluster = unlike(cluster, case.shares)

    def trainer_of(which: Any, parts: int, checkpointing: Checkpointing) -> Any:
        model, example, loss = which
        options: dict[str, Any] = {}
        if case.stages > 1:
            options = {"stages": case.stages, "schedule": case.schedule}
        if case.shares:
            options = {"shares": ":".join(map(str, case.shares))}
        if case.at_once:
            options = {"overlap": True, "in_flight": case.at_once}
        return autoddl.parallelize(
            model, cluster, example=example, loss=loss,
            optimizer=optimizer_maker(case.optimizer, 1e-3), micro_batches=parts,
            checkpointing=checkpointing, **options,
        )  # fmt: skip

    flow.manual_seed(0)  # the ranks' batches are the same
    # what collectives of some megabytes leave in a process, 50 to 70 MB, is none of the step's
    width = 8 if case.processes == 1 else 2048
    tiny = flow.nn.Sequential(flow.nn.Linear(width, width), flow.nn.Linear(width, width))
    small = tiny, (flow.randn(8, width), flow.randn(8, width)), flow.nn.MSELoss()
    parts = max(case.stages, case.at_once)
    trainer_of(small, parts, "none").step(*small[1])  # libraries and threads are there now
    before = resident("VmRSS")
    model, example, loss = model_of(case.model, case.micro_batches)
    own = sum(p.numel() * 4 for p in model.parameters())
    trainer = trainer_of((model, example, loss), case.micro_batches, case.checkpointing)
    trainer.step(*example).numpy()
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    trainer.step(*example).numpy()
    stage = trainer.plan.stages[trainer.stage]
    read = {op.attrs["index"] for op in stage.graph.ops if op.kind == "input"}
    unread = sum(4 * x.numel() for n, x in enumerate(example) if n not in read)
    rank = int(os.environ.get("RANK", "0"))
    return {
        **dataclasses.asdict(case),
        "stage": rank if case.shares or case.at_once else trainer.stage,
        "in_flight": stage.in_flight,
        "recomputed_blocks": len(stage.recomputed),
        "predicted_bytes": peak_bytes(stage_figures(stage), rank),
        "measured_bytes": resident("VmHWM") - before - own - unread,
    }


def unlike(cluster: Any, shares: tuple[int, ...]) -> Any:
    """Hosts with memory and speed in proportion to their shares."""
    from autoddl.cluster.spec import HostGroup

    def part(share: int) -> Any:
        device, of_most = cluster.device, share / max(shares)
        return dataclasses.replace(
            device,
            memory_bytes=int(device.memory_bytes * of_most),
            flops_per_s={dtype: of_most * rate for dtype, rate in device.flops_per_s.items()},
            memory_bandwidth_bytes_per_s=of_most * device.memory_bandwidth_bytes_per_s,
            operators={},
        )

    groups = tuple(HostGroup(f"host {n}", 1, part(share)) for n, share in enumerate(shares))
    return dataclasses.replace(cluster, groups=groups)


def peak_bytes(known: StageFigures, rank: int) -> int:
    """Of the executor on the host of that rank, each with one process."""
    if len(known.model.memory_views) == 1:
        return known.peak_bytes
    (view,) = (view for view in known.model.memory_views if rank in view.hosts)
    step = dataclasses.replace(known.step, mesh=view.mesh)
    return memory_peak(step, known.model.memory_rules, "executor").bytes


def run(number: int, live: bool) -> list[dict[str, Any]]:
    """One case, a row for each stage, in processes of its own.

    malloc returns what is freed there.
    """
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    command = [str(Path(__file__)), "--case", str(number), *(["--live"] if live else [])]
    told = io.StringIO()
    status = run_processes(
        command, CASES[number].processes, {**environment, "PYTHONPATH": str(ROOT)}, output=told
    )
    if status:
        raise SystemExit(f"case {number} ended with status {status}\n{told.getvalue()}")
    lines = [line[line.index("{") :] for line in told.getvalue().splitlines() if "{" in line]
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return sorted(rows, key=lambda row: row["stage"])


def markdown(rows: list[dict[str, Any]]) -> str:
    errors = [row["predicted_bytes"] / row["live_bytes"] - 1 for row in rows]
    kept = [row["held_bytes"] / row["live_bytes"] - 1 for row in rows]
    lines = [
        f"Memory of autoddl's executor on one CPU device: predicted, of live tensors, and held by "
        f"the process. Predicted for live tensors: {min(errors):+.1%} to {max(errors):+.1%}; what "
        f"OneFlow's allocator adds: {min(kept):+.1%} to {max(kept):+.1%}.",
        "",
        "| model | micro-batches | optimizer | stage | in flight | blocks run again | predicted MB | live MB | predicted / live | held MB | held / live |",  # noqa: E501
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        predicted, live, held = (row[f"{what}_bytes"] for what in ("predicted", "live", "held"))
        lines.append(
            f"| {row['model']} | {row['micro_batches']} | {row['optimizer']} | "
            f"{_stage_text(row)} | {row['in_flight']} | "
            f"{row['recomputed_blocks'] or '-'} | {predicted / 1e6:,.1f} | {live / 1e6:,.1f} | "
            f"{predicted / live:.3f} | {held / 1e6:,.1f} | {held / live:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _stage_text(row: dict[str, Any]) -> str:
    stages = row["stages"]
    if row["shares"]:
        return f"host {row['stage']} of shares {':'.join(map(str, row['shares']))}"
    if row["at_once"]:
        return f"host {row['stage']} of 2, overlapped"
    return "-" if stages == 1 else f"{row['stage']} of {stages}, {row['schedule']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--only", type=int, nargs="*", help="cases to run; none is written")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "memory")
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(CASES[arguments.case], arguments.live)), flush=True)
        if arguments.live:
            atexit._run_exitfuncs()  # the other ranks learn that this one is done
            os._exit(0)  # OneFlow may crash as it exits, once blocks were given back by hand
        return
    rows = []
    for number in arguments.only or range(len(CASES)):
        held = run(number, live=False)
        for row, other in zip(run(number, live=True), held, strict=True):
            row["live_bytes"] = row.pop("measured_bytes")
            row["held_bytes"] = other["measured_bytes"]
            print(json.dumps(row), flush=True)
            rows.append(row)
    if arguments.only:
        return
    write_atomically(arguments.output / "executor.json", json.dumps({"rows": rows}, indent=1))
    write_atomically(
        arguments.output / "executor.md", f"# The executor's memory\n\n{markdown(rows)}"
    )


if __name__ == "__main__":
    main()
