"""A rank of a job into which a fault is put: `python -m benchmarks.faults.rank FAULT`.

OneFlow comes first, as in many scripts, though its import waits for all ranks. A rank whose link
fails waits, before its next step, until the file that FAULT names is there.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from .cases import DISAGREE, LATER, MARK, SHAPES, SIGNALS, SUDDEN, TRAINED, TRAINS_NOTHING, Fault


def announce() -> None:
    print(f"{MARK} {time.time()}", flush=True)


def fail(kind: str) -> None:
    announce()
    if kind == "raise":
        raise RuntimeError("a fault")
    if kind in ("sleep", "never starts"):
        time.sleep(3600)
    elif kind == "sys.exit(3)":
        sys.exit(3)
    elif kind.startswith("_exit"):
        os._exit(int(kind[6]))
    elif kind == "reset":
        reset_connections()
    else:
        os.kill(os.getpid(), SIGNALS[kind])
        time.sleep(3600)  # a handler may need time


def reset_connections() -> None:
    """All of this process's TCP connections end as those of a peer that has rebooted do."""
    nowhere = (ctypes.c_char * 16)()  # of family AF_UNSPEC: the kernel sends a reset
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket
            continue
        with one:
            try:
                one.getpeername()
            except OSError:  # not connected
                continue
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                ctypes.CDLL(None).connect(one.fileno(), nowhere, 16)


def change(kind: str, trainer: Any, x: Any, y: Any, folder: Path) -> tuple[Any, Any]:
    """What this rank does on its own before its next step; the batch for that."""
    import oneflow as flow

    if kind == "scheduler":
        flow.optim.lr_scheduler.StepLR(trainer.optimizer, 1, gamma=0.5).step()
    elif kind == "group":
        trainer.optimizer.param_groups[0]["momentum"] = 0.5
    elif kind == "clip":
        trainer._update.limit = 1.0
    elif kind == "hook":
        trainer.after_backward(lambda named: None)
    elif kind == "evaluates":
        trainer.evaluate([(x, y)])
    elif kind == "saves":
        trainer.save(folder)
    return (x[:4], y[:4]) if kind == "short batch" else (x, y)


def main() -> None:
    words = json.loads(sys.argv[1])
    in_place = Path(words.pop("in_place"))
    fault = Fault(**words)
    is_bad = os.environ["RANK"] == str(fault.rank)
    if is_bad and fault.when == "before import":
        fail(fault.kind)
    import oneflow as flow

    import autoddl

    if is_bad and fault.when == "start" and fault.kind in SUDDEN:
        fail(fault.kind)
        raise AssertionError("it has not failed")
    flow.manual_seed(1 if is_bad and fault.kind == "seed" else 0)
    if is_bad and fault.kind in (*DISAGREE, *TRAINS_NOTHING):
        announce()
    trainer = autoddl.parallelize(**_asked(fault, is_bad))
    rng = flow.Generator()
    rng.manual_seed(0)
    x, y = flow.randn(8, 8, generator=rng), flow.randn(8, 8, generator=rng)
    at = int(fault.when[-1]) if "step" in fault.when else -1
    if fault.when.startswith("inside"):  # all ranks must have the same hooks
        fails_at = at if is_bad else -1
        trainer.after_backward(lambda _: fail(fault.kind) if trainer.steps == fails_at else None)
    for step in range(fault.steps):
        given = x, y
        if is_bad and step == at and not fault.when.startswith("inside"):
            if fault.kind in LATER:
                announce()
                if fault.kind == "fewer batches":
                    break
                given = change(fault.kind, trainer, x, y, in_place.parent / "checkpoint")
            elif fault.kind in ("nan", "batch"):
                announce()
                # both: stages read one of them each
                given = [z * float("nan") if fault.kind == "nan" else z + 1.0 for z in given]
            elif fault.is_of_link:
                announce()
                while not in_place.exists():
                    time.sleep(0.05)
            else:
                fail(fault.kind)
        float(trainer.step(*given))
    if os.environ["RANK"] == "0":
        print(TRAINED, flush=True)


def _asked(fault: Fault, is_bad: bool) -> dict[str, Any]:
    """What this rank asks `parallelize` for."""
    import oneflow as flow

    import autoddl

    nn, kind = flow.nn, fault.kind
    other = kind if is_bad else ""
    nodes, per_node = SHAPES[fault.mesh]
    if other == "cluster":
        nodes, per_node = per_node, nodes
        if nodes == per_node:
            nodes, per_node = 1, 4
    wide = 32 if other == "width" else 16
    model = nn.Sequential(nn.Linear(8, wide), nn.ReLU(), nn.Linear(wide, 8))
    if kind == "detached":
        model = _detached(model)
    example = (flow.ones(8, 8), flow.ones(8, 8))
    loss = nn.L1Loss() if other == "loss" else nn.MSELoss()
    if kind == "loss ignores":
        loss = lambda _, y: (y * y).mean()  # noqa: E731
    kept = list(model.parameters())

    def optimizer(given: Any) -> Any:
        if kind == "own parameters":
            return flow.optim.SGD(kept, lr=0.1)
        if other == "optimizer":
            return flow.optim.Adam(given, lr=0.1)
        return flow.optim.SGD(given, lr=0.2 if other == "lr" else 0.1)

    options: dict[str, Any] = {"stages": 2} if "stages" in fault.mesh else {}
    options |= {
        "debug": {"debug": True},
        "micro-batches": {"micro_batches": 4},
        "search": {"search": "coordinate_descent"},
        "batch norm": {"batch_norm": "shard"},
    }.get(other, {})
    cluster = autoddl.Cluster.load("laptop").with_shape(nodes, per_node)
    if kind == "plan":
        graph = autoddl.trace(model, *example, loss=loss)
        if is_bad:
            options |= {"micro_batches": 4}
        options = {"plan": autoddl.plan(graph, cluster, optimizer="sgd", **options)}
    return dict(
        model=model, cluster=cluster, example=example, loss=loss, optimizer=optimizer, **options
    )


def _detached(inner: Any) -> Any:
    import oneflow as flow

    class Detached(flow.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x).detach()

    return Detached()


main()
