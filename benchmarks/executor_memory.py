"""The executor's memory on this machine: resident bytes of a step against the prediction.

`python -m benchmarks.executor_memory`. Each case trains on one device in a process of its own: the
peak of its resident memory in a step, less what it held before the model was there and less the
model's own parameters (the executor works on copies). Small allocations stay in malloc's pools, so
cases are large.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autoddl.attempts import Checkpointing

CASES = (
    ("mlp", 1, "sgd", "none"),
    ("mlp", 4, "adam", "none"),
    ("gpt", 1, "adam", "none"),
    ("gpt", 4, "sgd", "none"),
    ("attention", 1, "momentum", "none"),
    ("mlp", 1, "sgd", "all"),
    ("attention", 1, "momentum", "all"),
    ("deep", 1, "sgd", "none"),
    ("deep", 1, "sgd", "all"),
)


def resident(what: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {what} in /proc/self/status")


def model_of(name: str) -> Any:
    import oneflow as flow
    import oneflow.nn as nn

    from models.gpt import Gpt, next_token_loss

    if name == "mlp":
        layers: list[Any] = []
        for _ in range(6):
            layers += [nn.Linear(1024, 1024), nn.ReLU()]
        return (
            nn.Sequential(*layers),
            (flow.randn(4096, 1024), flow.randn(4096, 1024)),
            nn.MSELoss(),
        )
    wide = name == "gpt"
    model = Gpt(
        8 if name == "deep" else 2, 512 if wide else 128, 8, 256, vocabulary=8192 if wide else 64
    )
    tokens = flow.randint(0, 64, (8, 256))
    return model, (tokens, tokens), next_token_loss


def measure(
    name: str, micro_batches: int, optimizer: str, checkpointing: Checkpointing
) -> dict[str, Any]:
    """Predicted and measured bytes of one case, in this process."""
    import oneflow as flow

    import autoddl
    from autoddl.backend.oneflow.entries import optimizer_maker

    cluster = autoddl.Cluster.load("calibration/machines/laptop.json").with_shape(1, 1)

    def trainer_of(which: Any, parts: int) -> Any:
        model, example, loss = which
        return autoddl.parallelize(
            model, cluster, example=example, loss=loss,
            optimizer=optimizer_maker(optimizer, 1e-3), micro_batches=parts,
            checkpointing=checkpointing if which[0] is not tiny else "none",
        )  # fmt: skip

    tiny = flow.nn.Linear(8, 8)
    small = tiny, (flow.randn(8, 8), flow.randn(8, 8)), flow.nn.MSELoss()
    trainer_of(small, 1).step(*small[1])  # libraries and threads are there now
    before = resident("VmRSS")
    model, example, loss = model_of(name)
    own = sum(p.numel() * 4 for p in model.parameters())
    trainer = trainer_of((model, example, loss), micro_batches)
    for _ in range(2):
        trainer.step(*example).numpy()
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    trainer.step(*example).numpy()
    measured = resident("VmHWM") - before - own
    predicted = trainer.plan.memory_peak("executor")
    return {
        "case": f"{name}, {micro_batches} micro-batches, {optimizer}, recomputed: {checkpointing}",
        "predicted_bytes": predicted.bytes,
        "measured_bytes": measured,
        "compiled_graph_bytes": trainer.plan.memory_peak("graph").bytes,
        "error": predicted.bytes / measured - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(measure(*CASES[arguments.case])))
        return
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    for number in range(len(CASES)):
        command = [sys.executable, "-m", "benchmarks.executor_memory", "--case", str(number)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{row['case']}: predicted {row['predicted_bytes'] / 1e6:.1f} MB, measured "
            f"{row['measured_bytes'] / 1e6:.1f} MB ({row['error']:+.1%}); as a compiled graph "
            f"{row['compiled_graph_bytes'] / 1e6:.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
