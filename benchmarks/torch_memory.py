"""PyTorch's executor on this machine: resident bytes of a step against the prediction.

`python -m benchmarks.torch_memory`, in an environment with PyTorch. Each case trains by one plan,
its ranks in processes of their own: the peak of each one's resident memory in a step, less what it
held before the model was there, and less the model's own parameters, on copies of which the
executor works. PyTorch's CPU allocator gives a freed tensor's memory back at once where malloc
does, as it is told to here, so that what is resident are live tensors. The batch is left out on
both sides: each rank has all of it, and works on its own rows. Resident is also what gloo has for
itself, some 3 MB here, 10 to 25 where activations travel; by a count of what malloc had handed out,
of GPT and Llama under Megatron and random plans on four devices, predicted / live was 0.97 to 1.02.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.cluster.spec import Cluster
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.jobs.launch import run_processes
from autoddl.sbp.layout import even_bytes
from benchmarks.executor_memory import LAPTOP, ROOT, peak_of, resident, unlike

NO_LIMIT = 1e12


@dataclass(frozen=True)
class Case:
    """A model on hosts of one device, the scheme of its plan (`tests.exactness.schemes`).

    shares: of hosts whose memory and speed are in proportion to them
    """

    model: str
    scheme: str
    micro_batches: int = 1
    optimizer: str = "sgd"
    hosts: int = 2
    shares: tuple[int, ...] = ()


CASES = (
    Case("mlp", "data_parallel"),
    Case("gpt", "Megatron"),
    Case("llama", "Megatron"),
    Case("gpt", "zero:3", 1, "adam"),
    Case("gpt", "stages:2", 4),
    Case("llama", "stages:2", 4),
    Case("mlp", "stages:2", 2, hosts=4),
    Case("gpt", "stages:2", 4, "adam", hosts=4),
    *(Case(name, "turns:data_parallel", 2) for name in ("mlp", "gpt", "llama")),
    *(Case(name, "turns:data_parallel", 4) for name in ("mlp", "gpt", "llama")),
    Case("few rows", "turns:data_parallel", 2, "adam"),
    Case("few rows", "turns:data_parallel", 4),
    *(Case(name, "random:1", hosts=4) for name in ("mlp", "gpt", "llama")),
    *(Case(name, "random:2", shares=(3, 1)) for name in ("mlp", "gpt", "llama")),
)


def model_of(case: Case) -> Any:
    """A model, its batch and its loss; tensors of tens of megabytes."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from tests.pytorch.models import Gpt, Llama, next_word

    if case.model in ("mlp", "few rows"):
        width = 1024
        layers = [part for _ in range(6) for part in (nn.Linear(width, width), nn.ReLU())]
        rows = (8192 if case.model == "mlp" else 1024) * case.micro_batches
        batch = torch.randn(rows, width), torch.randn(rows, width)
        return nn.Sequential(*layers), batch, F.mse_loss
    made = Gpt(2, 512, 8, 2048, 128) if case.model == "gpt" else Llama(2, 512, 2048, 128)
    words = torch.randint(0, 2048, (32 * case.micro_batches, 128))
    return made, (words, words), next_word


def measure(case: Case) -> dict[str, Any]:
    """Predicted and measured bytes of this rank."""
    import torch

    from autoddl.runtime.torch.framework import build_trainer
    from autoddl.runtime.torch.trace.trace import trace_with_state
    from tests.exactness.schemes import plan_of

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    cluster = Cluster.load(LAPTOP).with_shape(case.hosts, 1)
    if case.shares:
        cluster = unlike(cluster, case.shares)
    optimizer = torch.optim.SGD if case.optimizer == "sgd" else torch.optim.Adam

    def trainer_of(which: Any, parts: int, scheme: str) -> Any:
        model, batch, loss = which
        traced = trace_with_state(model, *batch, loss=loss)
        plan = plan_of(scheme, traced.graph, cluster, case.optimizer, parts)
        return build_trainer(
            traced, plan.changed(back_end="torch"), lambda own: optimizer(own, lr=1e-3)
        )

    torch.manual_seed(0)  # the ranks' batches are the same
    tiny = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    small = tiny, (torch.randn(8, 64), torch.randn(8, 64)), torch.nn.functional.mse_loss
    trainer_of(small, 1, "data_parallel").step(*small[1])  # libraries and threads are there now
    before = resident("VmRSS")
    which = model_of(case)
    model, batch, _ = which
    own = sum(p.numel() * p.element_size() for p in model.parameters())
    trainer = trainer_of(which, case.micro_batches, case.scheme)
    trainer.step(*batch)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    trainer.step(*batch)
    peak, stage = resident("VmHWM"), trainer.plan.stages[trainer.stage]
    rows = copied = 0
    known = stage_figures(stage)
    for op in stage.graph.ops:
        if op.kind == "input":
            (nd,) = stage.ops[op.name].outs
            size = even_bytes(stage.graph.tensors[op.outputs[0]].spec, nd, stage.mesh)
            rows += size * stage.micro_batches
            copied += size * stage.micro_batches * any(nd.split_dims())  # its first rows are views
    whole = sum(x.numel() * x.element_size() for x in batch)
    return {
        **dataclasses.asdict(case),
        "rank": rank,
        "predicted_bytes": peak_of(known, rank).bytes - rows,
        "live_bytes": peak - before - own - whole - copied,
    }


def run(number: int) -> list[dict[str, Any]]:
    """One case, a row for each rank."""
    environment = {
        "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    told = io.StringIO()
    command = [str(Path(__file__)), "--case", str(number)]
    status = run_processes(command, CASES[number].hosts, environment, output=told)
    if status:
        raise SystemExit(f"case {number} ended with status {status}\n{told.getvalue()}")
    lines = [line[line.index("{") :] for line in told.getvalue().splitlines() if "{" in line]
    return sorted(map(json.loads, lines), key=lambda row: row["rank"])


def markdown(rows: list[dict[str, Any]]) -> str:
    ratios = [row["predicted_bytes"] / row["live_bytes"] for row in rows]
    lines = [
        "# The executor's memory on PyTorch",
        "",
        f"Of a step on CPU devices, the batch left out: predicted / live {min(ratios):.3f} to "
        f"{max(ratios):.3f}, in the middle {sorted(ratios)[len(ratios) // 2]:.3f}.",
        "",
        "| model | plan | micro-batches | optimizer | rank | predicted MB | live MB | ratio |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    for row, ratio in zip(rows, ratios, strict=True):
        shares = f", shares {':'.join(map(str, row['shares']))}" if row["shares"] else ""
        lines.append(
            f"| {row['model']} | {row['scheme']} | {row['micro_batches']} | {row['optimizer']} | "
            f"{row['rank']} of {row['hosts']}{shares} | {row['predicted_bytes'] / 1e6:.2f} | "
            f"{row['live_bytes'] / 1e6:.2f} | {ratio:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int)
    parser.add_argument("--only", type=int, nargs="*", help="cases to run; none is written")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "memory")
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(CASES[options.case])), flush=True)
        return
    rows = []
    for number in options.only or range(len(CASES)):
        rows += run(number)
        print(markdown(rows).splitlines()[-1], flush=True)
    if options.only:
        return
    options.output.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output / "torch.json", json.dumps(rows, indent=1) + "\n")
    write_atomically(options.output / "torch.md", markdown(rows))


if __name__ == "__main__":
    main()
