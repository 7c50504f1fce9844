"""Models that nobody here wrote, trained by several plans on PyTorch, and by one eager process.

    python -m benchmarks.torch_models [--shape 2x2]... [--steps N] [--double] [--trace] [NAME...]

NAME is one of `tests/pytorch/zoo.py`; by default those that issue 26 names. A line per model and
plan: the largest relative difference of losses, and that of all parameters. --trace: how far a
model gets, without training. --double: in float64, as many layers of BatchNorm on a few small
images make of float32's rounding differences of percents, in one process as in several.

torch is imported once: a model is traced in a process of its own, whose forks are the ranks.
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autoddl.cluster.spec import Cluster
from autoddl.plans import Plan
from autoddl.runtime.nested import map_leaves
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from autoddl.runtime.traced import Traced
from tests.exactness.schemes import plan_of
from tests.pytorch import zoo
from tests.pytorch.models import relative

SCHEMES = "searched", "mostly_data", "random:1"
LOSSES, PARAMETERS = 1e-5, 1e-4
LIMIT_SECONDS = 900
NO_ANSWER = "no rank has answered"


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def arguments(batch: Any) -> tuple[Any, ...]:
    return (batch,) if isinstance(batch, dict) else batch


def alone(
    model: Any, loss: Callable[..., Any], batch: Callable[[int], Any], steps: int
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the last state of one process."""
    own, losses = optimizer(model.parameters()), []
    for step in range(steps):
        given = batch(step)
        own.zero_grad()
        if isinstance(given, dict):
            value = loss(model(**given), given)
        else:
            value = loss(model(*given[:-1]), given[-1])
        value.backward()
        own.step()
        losses.append(float(value))
    return losses, model.state_dict()


def train(
    traced: Traced,
    plan: Plan,
    batch: Callable[[int], Any],
    expected: tuple[list[float], dict[str, torch.Tensor]],
) -> dict[str, float]:
    """On each rank: how far losses and parameters are from the expected ones."""
    losses, state = expected
    trainer = build_trainer(traced, plan, optimizer)
    worst = 0.0
    for step, loss in enumerate(losses):
        worst = max(worst, relative(float(trainer.step(*arguments(batch(step)))), loss))
    found = trainer.state_dict()
    floats = {k: v for k, v in state.items() if v.is_floating_point()}
    apart = sum(float((found[k] - v).square().sum()) for k, v in floats.items())
    size = sum(float(v.square().sum()) for v in floats.values())
    return {"losses": worst, "parameters": (apart / size) ** 0.5}


def forked(count: int, work: Callable[[int], Any]) -> dict[str, Any]:
    """Runs `work(number)` in processes; their answers, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        taken.close()
        started = []
        for number in range(count):
            pid = os.fork()
            if not pid:
                signal.alarm(LIMIT_SECONDS)
                torch.set_num_threads(1)  # a fork's pool is made anew, before autograd's threads
                os.environ.update(
                    RANK=str(number), WORLD_SIZE=str(count), LOCAL_RANK=str(number),
                    LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                    AUTODDL_TIMEOUT="0",
                )  # fmt: skip
                try:
                    answer = work(number) or {}
                except BaseException as error:
                    answer = {"error": f"{type(error).__name__}: {error}"[:300]}
                    if "-v" in sys.argv and not number:
                        traceback.print_exc(limit=-6)
                Path(folder, str(number)).write_text(json.dumps(answer))
                sys.stdout.flush()
                os._exit("error" in answer)
            started.append(pid)
        failed = False
        while started:  # when one has failed, the others wait for it in vain
            pid, status = os.wait()
            started.remove(pid)
            if status and not failed:
                failed = True
                for other in started:
                    os.kill(other, signal.SIGTERM)
        texts = [p.read_text() for p in sorted(Path(folder).iterdir(), key=lambda p: int(p.name))]
    answers = [json.loads(text) for text in texts]
    wrong = [a for a in answers if "error" in a]
    return wrong[0] if wrong else answers[0] if answers else {"error": NO_ANSWER}


def in_double(tree: Any) -> Any:
    return map_leaves(tree, torch.Tensor, lambda x: x.double() if x.is_floating_point() else x)


def run_model(name: str, options: argparse.Namespace) -> None:
    """The rows of one model."""
    warnings.simplefilter("ignore")
    began = time.process_time()
    model, loss, batch = zoo.build(name)
    if options.double:
        model, single = model.double(), batch
        batch = lambda step: in_double(single(step))  # noqa: E731
    row = {"model": name, "parameters": sum(p.numel() for p in model.parameters())}
    traced = trace_with_state(model, *arguments(batch(0)), loss=loss)
    graph = traced.graph
    row |= {"operators": len(graph.ops), "batch": graph.batch, "opaque": len(traced.opaque),
            "trace_s": round(time.process_time() - began, 1)}  # fmt: skip
    print(json.dumps(row), flush=True)
    if options.trace:
        return
    model.train()
    with tempfile.NamedTemporaryFile() as file:  # no backward pass may run before a fork
        made = forked(1, lambda _: torch.save(alone(model, loss, batch, options.steps), file.name))
        if made:
            raise RuntimeError(made["error"])
        expected = torch.load(file.name)
    for shape in options.shape or ["2x2"]:
        nodes, gpus = map(int, shape.split("x"))
        cluster = Cluster.load("laptop").with_shape(nodes=nodes, gpus_per_node=gpus)
        for scheme in SCHEMES:
            began = time.process_time()
            try:
                plan = plan_of(scheme, graph, cluster, "momentum", 1)
            except ValueError as error:
                row = {"model": name, "shape": shape, "scheme": scheme, "error": str(error)[:200]}
                print(json.dumps(row), flush=True)
                continue
            seconds = round(time.process_time() - began, 1)
            found: dict[str, Any] = {}
            for _ in range(3):  # torch's thread pool does not survive each fork
                found = forked(
                    nodes * gpus, lambda number, plan=plan: train(traced, plan, batch, expected)
                )
                if not any(text in found.get("error", "") for text in (NO_ANSWER, "gloo")):
                    break
            ok = "error" not in found and (
                found["losses"] <= LOSSES and found["parameters"] <= PARAMETERS
            )
            line = {"model": name, "shape": shape, "scheme": scheme, "ok": ok, "plan_s": seconds}
            print(json.dumps({**line, **found}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=zoo.ASKED)
    parser.add_argument("--shape", action="append")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("-v", action="store_true", help="show where an error came from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()

    def one(name: str) -> dict[str, Any]:
        try:
            run_model(name, options)
        except Exception as error:
            if options.v:
                traceback.print_exc(limit=-6)
            text = f"{type(error).__name__}: {error}"[:400]
            print(json.dumps({"model": name, "error": text}), flush=True)
        return {}

    for name in options.names:
        forked(1, lambda number, name=name: one(name))


if __name__ == "__main__":
    main()
