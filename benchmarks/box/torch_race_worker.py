"""One rank: our plans and PyTorch's own ways train the same model in turns.

Arguments: folder, model, hosts, devices of each; in the folder work.json with "plans" (name ->
file), "visits" and "rounds". At each visit all are set up anew from equal parameters. Writes for
each racer the seconds of its steps, the bytes that one sends on this host's link, and its losses.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoddl.plans import Plan
from autoddl.runtime.jobs.guard import install_guard
from autoddl.runtime.torch.backend import Torch
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from autoddl.tools.box.counters import read_own_link
from benchmarks.box.torch_models import MODELS
from benchmarks.box.torch_rivals import Meshes, Step, rival_step, rivals_of

QUIET_SECONDS = 0.02  # the last acknowledgements
WARM_UP = 2  # steps; the second one's bytes are noted
# BatchNorm on few small images makes of float32's rounding, in some larger steps, percents
RATES = {"resnet": 1e-3}
Racer = tuple[str, Step]


def meet() -> None:
    dist.all_reduce(torch.zeros(1))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    meet()
    began = time.perf_counter()
    value = call()
    meet()
    return time.perf_counter() - began, value


def racers_of(name: str, plans: dict[str, Plan], meshes: Meshes) -> list[Racer]:
    found: list[Racer] = []
    optimizer = partial(torch.optim.SGD, lr=RATES.get(name, 1e-2), momentum=0.9)
    for title, plan in plans.items():
        model, example, loss = built(name)
        traced = trace_with_state(model, *example, loss=loss)
        found.append((title, build_trainer(traced, plan, optimizer).step))
    for rival in rivals_of(name):
        model, _, loss = built(name)
        found.append((rival, rival_step(rival, name, model, loss, meshes, optimizer)))
    return found


def built(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]()


def batches(name: str, count: int) -> list[Any]:
    torch.manual_seed(1)
    return [MODELS[name]()[1] for _ in range(count)]


def sent_by(call: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes on this host's link."""
    before, value, after = looked(), call(), looked()
    return after - before, value


def looked() -> int:
    meet()
    time.sleep(QUIET_SECONDS)
    count = read_own_link().sent_bytes
    meet()  # nobody goes on before all have looked
    return count


def main(folder: str, name: str, hosts: int, each: int) -> None:
    install_guard()
    torch.set_num_threads(1)
    work = json.loads((Path(folder) / "work.json").read_text())
    plans = {title: Plan.load(Path(folder) / file) for title, file in work["plans"].items()}
    Torch("cpu")  # joins the job
    meshes, given = Meshes(hosts, each), batches(name, WARM_UP + work["rounds"])
    meeting_s = sorted(timed(lambda: None)[0] for _ in range(9))[4]
    seconds: dict[str, list[float]] = {}
    sent: dict[str, int] = {}
    losses: dict[str, list[float]] = {}
    for _ in range(work["visits"]):
        racers = racers_of(name, plans, meshes)
        losses = {title: [] for title, _ in racers}
        for title, step in racers:
            for batch in given[:WARM_UP]:
                sent[title], loss = sent_by(partial(step, *batch))
                losses[title].append(float(loss))
        for batch in given[WARM_UP:]:
            for title, step in racers:
                taken_s, loss = timed(partial(step, *batch))
                seconds.setdefault(title, []).append(taken_s - meeting_s)
                losses[title].append(float(loss))
        racers.clear()
        gc.collect()
    found = {
        title: {"seconds": seconds[title], "sent_bytes": sent[title], "losses": losses[title]}
        for title in seconds
    }
    (Path(folder) / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
