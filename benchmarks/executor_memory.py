"""The executor's memory on this machine: bytes of live tensors in a step against the prediction.

`python -m benchmarks.executor_memory`. Each case trains on one device, or as a pipeline on one
device a stage, or on several hosts of one device, in processes of its own. Live are the bytes of
tensors that OneFlow's allocator has handed out, and of the buffers of collectives, counted by
`live_bytes.c` in front of it at every moment of a step that runs as it always does. What the
process takes is more: the allocator keeps free blocks, and shares blocks of 20 MB among tensors of
less than 10 MB.

The batch is left out on both sides: each rank has all of it, and works on views of its own rows, or
on copies where other dims are split.

The last cases are of two kinds of hosts, whose memory is in proportion to their shares. The limit
is lowered step by step, to a share of what the fullest host needed, until no plan is found, and
each plan trains: what is live on a host, with its rows of the batch, is held against its limit.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import io
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cost.model import MemoryView
from autoddl.cost.recompute import Checkpointing
from autoddl.cost.required import memory_peak
from autoddl.cost.tape import Peak
from autoddl.plans.stage import StagePlan
from autoddl.plans.stage_figures import StageFigures, stage_figures
from autoddl.runtime.jobs.launch import run_processes
from autoddl.sbp.layout import even_bytes
from autoddl.sbp.mesh import Mesh

ROOT = Path(__file__).parents[1]
LAPTOP = "laptop"
ANY = 1e12  # bytes: no limit
LOWER = 0.85  # of what a plan needs, the next limit
STEPS = 3  # measured; what runs beside computation comes at its own time


@dataclass(frozen=True)
class Case:
    """A model, micro-batches, the optimizer, what is run again, and of a pipeline its schedule.

    shares: of a host that has three times the memory and speed of the other, and of that
    at_once: of a plan on two hosts that overlaps, how many micro-batches are in flight; 0 for none
    limited: the memory limit is lowered step by step
    """

    model: str
    micro_batches: int
    optimizer: str
    checkpointing: Checkpointing = "none"
    stages: int = 1
    schedule: str = "1f1b"
    shares: tuple[int, ...] = ()
    at_once: int = 0
    limited: bool = False

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
    *(
        Case(model, 1, optimizer, "auto", shares=shares, limited=True)
        for model, optimizer in (("mlp", "adam"), ("attention", "sgd"), ("experts", "sgd"))
        for shares in ((3, 1), (2, 1))
    ),
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
    from autoddl.runtime.oneflow.models.moe import MixedLanguageModel, language_loss

    if name == "mlp":
        layers: list[Any] = []
        for _ in range(6):
            layers += [nn.Linear(768, 768), nn.ReLU()]
        rows = 768 * micro_batches
        data = flow.randn(rows, 768), flow.randn(rows, 768)
        return nn.Sequential(*layers), data, nn.MSELoss()
    if name == "unet":
        images = 16 * micro_batches, 1, 64, 64
        return unet(), (flow.randn(*images), flow.randn(*images)), nn.MSELoss()
    if name == "experts":
        tokens = flow.randint(0, 64, (24, 64))
        mixed = MixedLanguageModel(2, 128, 4, 64, 64, 12, 2, 0.0, causal=True)
        return mixed, (tokens, tokens), language_loss
    if name == "gpt":
        model, batch = Gpt(1, 512, 8, 256, vocabulary=2048), 8 * micro_batches
    else:
        blocks = 4 if name == "deep" else 2
        model, batch = Gpt(blocks, 192, 4, 96, vocabulary=64), 24 if micro_batches == 1 else 32
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


class Live:
    """Bytes of live tensors in this process, by what was loaded before it."""

    def __init__(self) -> None:
        self._counter = ctypes.CDLL(os.environ["LD_PRELOAD"])
        for name in ("live_now", "live_most"):
            getattr(self._counter, name).restype = ctypes.c_long
        self._before = self.now()

    def now(self) -> int:
        import oneflow as flow

        gc.collect()
        flow._oneflow_internal.eager.Sync()
        return int(self._counter.live_now())

    def most(self, run: Callable[[], Any]) -> int:
        """More than there was at the beginning, at the fullest moment of `run`."""
        self.now()
        self._counter.live_restart()
        run()
        self.now()
        return int(self._counter.live_most()) - self._before


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """Predicted and measured bytes of a case in this process, by row."""
    import oneflow as flow

    import autoddl
    from autoddl.runtime.oneflow.trace.entries import optimizer_maker

    cluster = autoddl.Cluster.load(LAPTOP).with_shape(case.processes, 1)
    if case.shares:
        cluster = unlike(cluster, case.shares)

    def trainer_of(which: Any, parts: int, checkpointing: Checkpointing, limit: float) -> Any:
        model, example, loss = which
        options: dict[str, Any] = {"memory_limit_bytes": limit}
        if case.stages > 1:
            options |= {"stages": case.stages, "schedule": case.schedule}
        if case.shares:
            options |= {"shares": ":".join(map(str, case.shares))}
        if case.at_once:
            options |= {"overlap": True, "in_flight": case.at_once}
        if not case.limited:
            options |= {"micro_batches": parts}
        return autoddl.parallelize(
            model, cluster, example=example, loss=loss,
            optimizer=optimizer_maker(case.optimizer, 1e-3), checkpointing=checkpointing,
            **options,
        )  # fmt: skip

    flow.manual_seed(0)  # the ranks' batches are the same
    tiny = flow.nn.Sequential(flow.nn.Linear(12, 12), flow.nn.Linear(12, 12))
    small = tiny, (flow.randn(12, 12), flow.randn(12, 12)), flow.nn.MSELoss()
    parts = max(case.stages, case.at_once)
    trainer_of(small, parts, "none", ANY).step(*small[1])  # libraries and threads are there now
    which = model_of(case.model, case.micro_batches)
    limit = ANY
    while True:
        live = Live()
        try:
            trainer = trainer_of(which, case.micro_batches, case.checkpointing, limit)
        except ValueError:  # no plan fits
            return
        trainer.step(*which[1])
        step = lambda trainer=trainer: trainer.step(*which[1])  # noqa: E731
        measured = max(live.most(step) for _ in range(STEPS))
        yield row_of(case, trainer, measured, limit)
        if not case.limited:
            return
        known = stage_figures(trainer.plan.stage)
        needs = max(size / view.times for view, size in known.needed_by_kind)
        limit = LOWER * min(limit, needs)
        del trainer, step, known


def row_of(case: Case, trainer: Any, measured: int, limit: float) -> dict[str, Any]:
    """What is known of a step, on this rank."""
    stage = trainer.plan.stages[trainer.stage]
    rank = int(os.environ.get("RANK", "0"))
    known = stage_figures(stage)
    view = view_of(known, rank)
    peak = peak_of(known, rank)
    rows = peak.always.get("inputs", 0)
    return {
        **dataclasses.asdict(case),
        "stage": rank if case.shares or case.at_once else trainer.stage,
        "micro_batches": trainer.plan.micro_batches,
        "in_flight": stage.in_flight,
        "recomputed_blocks": len(stage.recomputed),
        "zero_stages": sorted({edge.zero_stage for edge in stage.edges.values()} - {0}),
        "predicted_bytes": peak.bytes - rows,
        "live_bytes": measured - copied_bytes(stage, view.mesh),
        "rows_bytes": rows,
        "limit_bytes": None if limit == ANY else limit * view.times,
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


def copied_bytes(stage: StagePlan, mesh: Mesh) -> int:
    """Of a rank's parts of the batch, those that are no rows of it."""
    found = 0.0
    for op in stage.graph.ops:
        if op.kind != "input":
            continue
        (nd,) = stage.ops[op.name].outs
        if any(nd.split_dims()):  # by another dim than the first one
            found += even_bytes(stage.graph.tensors[op.outputs[0]].spec, nd, mesh)
    return round(found * stage.micro_batches)


def view_of(known: StageFigures, rank: int) -> MemoryView:
    """Of the host of that rank, each with one process."""
    views = known.model.memory_views
    if len(views) == 1:
        return views[0]
    (view,) = (view for view in views if rank in view.hosts)
    return view


def peak_of(known: StageFigures, rank: int) -> Peak:
    """Of the executor on the host of that rank."""
    step = dataclasses.replace(known.step, mesh=view_of(known, rank).mesh)
    return memory_peak(step, known.model.memory_rules, "executor")


def run(number: int, counter: str) -> list[dict[str, Any]]:
    """One case, a row for each stage or host and plan, in processes of its own."""
    environment = {"LD_PRELOAD": counter, "PYTHONPATH": str(ROOT)}
    told = io.StringIO()
    command = [str(Path(__file__)), "--case", str(number)]
    status = run_processes(command, CASES[number].processes, environment, output=told)
    if status:
        raise SystemExit(f"case {number} ended with status {status}\n{told.getvalue()}")
    lines = [line[line.index("{") :] for line in told.getvalue().splitlines() if '{"model"' in line]
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return sorted(rows, key=lambda row: (-(row["limit_bytes"] or ANY), row["stage"]))


def compiled(folder: str) -> str:
    """What counts live bytes, to be loaded before all else."""
    made = f"{folder}/live_bytes.so"
    source = str(Path(__file__).with_name("live_bytes.c"))
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def of_limit(row: dict[str, Any]) -> float | None:
    """What is live with the rank's rows of the batch, of its host's limit."""
    limit = row["limit_bytes"]
    return (row["live_bytes"] + row["rows_bytes"]) / limit if limit else None


def markdown(rows: list[dict[str, Any]]) -> str:
    errors = [row["predicted_bytes"] / row["live_bytes"] - 1 for row in rows]
    limited = list(filter(None, map(of_limit, rows)))
    most = f" Of a limit at most {max(limited):.3f} is live." if limited else ""
    lines = [
        f"Memory of autoddl's executor on CPU devices, the batch left out: predicted for live "
        f"tensors {min(errors):+.1%} to {max(errors):+.1%}, in the middle "
        f"{sorted(errors)[len(errors) // 2]:+.1%}.{most}",
        "",
        "| model | micro-batches | optimizer | stage | in flight | blocks run again | ZeRO | predicted MB | live MB | predicted / live | limit MB | of the limit |",  # noqa: E501
        "| --- | ---: | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        predicted, live, share = row["predicted_bytes"], row["live_bytes"], of_limit(row)
        limit = f"{row['limit_bytes'] / 1e6:,.1f} | {share:.3f}" if share else "- | -"
        lines.append(
            f"| {row['model']} | {row['micro_batches']} | {row['optimizer']} | "
            f"{_stage_text(row)} | {row['in_flight']} | {row['recomputed_blocks'] or '-'} | "
            f"{', '.join(map(str, row['zero_stages'])) or '-'} | {predicted / 1e6:,.1f} | "
            f"{live / 1e6:,.1f} | {predicted / live:.3f} | {limit} |"
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
    parser.add_argument("--only", type=int, nargs="*", help="cases to run; none is written")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "memory")
    arguments = parser.parse_args()
    if arguments.case is not None:
        for row in measure(CASES[arguments.case]):
            print(json.dumps(row), flush=True)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        counter = compiled(folder)
        for number in arguments.only or range(len(CASES)):
            found = run(number, counter)
            rows += found
            print("\n".join(markdown(found).splitlines()[4:]), flush=True)
    if arguments.only:
        return
    write_atomically(arguments.output / "executor.json", json.dumps({"rows": rows}, indent=1))
    write_atomically(
        arguments.output / "executor.md", f"# The executor's memory\n\n{markdown(rows)}"
    )


if __name__ == "__main__":
    main()
