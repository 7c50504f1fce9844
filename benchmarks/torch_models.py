"""Models that nobody here wrote, trained by several plans on PyTorch, and by one eager process.

    python -m benchmarks.torch_models [--shape 2x2]... [--schemes A,B] [--save] [NAME...]

NAME is one of `tests/pytorch/zoo.py`. A line per model and plan: the largest relative difference
of losses, and that of all parameters. --trace: how far a model gets, without training. --save
writes benchmarks/results/torch_models.md; what is not run keeps its old results.

Beside them stands how far one process is from itself when it reads each batch's rows in reverse,
which changes sums' order and nothing else: some models (layers of BatchNorm on a few small images)
make percents of float32's rounding in ten steps. Where that is more than a tenth of what is
allowed, all is done in float64.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autoddl._files import write_atomically
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
RESULTS = Path(__file__).parent / "results"
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


def reversed_rows(tree: Any) -> Any:
    return map_leaves(tree, torch.Tensor, lambda x: x.flip(0))


@dataclass
class Case:
    """A model with its loss and batches, as one process trains it, and how sure that is."""

    model: torch.nn.Module
    loss: Callable[..., Any]
    batch: Callable[[int], Any]
    losses: list[float]
    state: dict[str, torch.Tensor]
    noise: float


def single(name: str, steps: int, double: bool) -> Case:
    """The model trained by one process, in processes of their own.

    No backward pass may run before a fork.
    """
    model, loss, drawn = zoo.build(name)
    model.train()
    batch = drawn
    if double:
        model, batch = model.double(), lambda step: in_double(drawn(step))
    made = []
    for each in (batch, lambda step: reversed_rows(batch(step))):
        with tempfile.NamedTemporaryFile() as file:
            work = lambda _, each=each: torch.save(alone(model, loss, each, steps), file.name)  # noqa: E731
            if failed := forked(1, work):
                raise RuntimeError(failed["error"])
            made.append(torch.load(file.name))
    (losses, state), (others, _) = made
    noise = max(map(relative, others, losses))
    return Case(model, loss, batch, losses, state, noise)


def run_model(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of one model: of its trace, then of each plan."""
    warnings.simplefilter("ignore")
    double = False
    case = None
    if not options.trace:
        case = single(name, options.steps, double)
        if case.noise > LOSSES / 10:
            double = True
            case = single(name, options.steps, double)
    model, loss, batch = (case.model, case.loss, case.batch) if case else zoo.build(name)
    began = time.process_time()
    traced = trace_with_state(model, *arguments(batch(0)), loss=loss)
    graph = traced.graph
    yield {"model": name, "parameters": sum(p.numel() for p in model.parameters()),
           "operators": len(graph.ops), "batch": graph.batch, "opaque": len(traced.opaque),
           "trace_s": round(time.process_time() - began, 1)}  # fmt: skip
    if case is None:
        return
    model.train()
    about = {"model": name, "precision": "float64" if double else "float32", "noise": case.noise}
    for shape in options.shape or ["2x2"]:
        nodes, gpus = map(int, shape.split("x"))
        cluster = Cluster.load("laptop").with_shape(nodes=nodes, gpus_per_node=gpus)
        for scheme in options.schemes.split(","):
            row = {**about, "shape": shape, "scheme": scheme}
            began = time.process_time()
            try:
                plan = plan_of(scheme, graph, cluster, "momentum", 1)
            except (ValueError, AssertionError) as error:  # none has this scheme
                yield {**row, "error": str(error)[:200]}
                continue
            row["plan_s"] = round(time.process_time() - began, 1)
            found: dict[str, Any] = {}
            for _ in range(3):  # torch's thread pool does not survive each fork
                work = lambda _, plan=plan: train(traced, plan, batch, (case.losses, case.state))  # noqa: E731
                found = forked(nodes * gpus, work)
                if not any(text in found.get("error", "") for text in (NO_ANSWER, "gloo")):
                    break
            ok = "error" not in found and (
                found["losses"] <= LOSSES and found["parameters"] <= PARAMETERS
            )
            yield {**row, "ok": ok, **found}


def rows_of(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one model, each printed once it is there."""
    rows = []
    try:
        for row in run_model(name, options):
            print(json.dumps(row), flush=True)
            rows.append(row)
    except Exception as error:
        if options.v:
            traceback.print_exc(limit=-6)
        rows.append({"model": name, "error": f"{type(error).__name__}: {error}"[:400]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def save(rows: list[dict[str, Any]]) -> None:
    """Writes the trained rows among those that were there before."""
    file = RESULTS / "torch_models.json"
    old = json.loads(file.read_text()) if file.is_file() else []
    trained = [row for row in rows if "scheme" in row]
    kept = {(row["model"], row["shape"], row["scheme"]): row for row in [*old, *trained]}
    order = sorted(kept, key=lambda key: (list(zoo.NAMES).index(key[0]), *key[1:]))
    found = [kept[key] for key in order]
    lines = ",\n".join(f" {json.dumps(row)}" for row in found)
    write_atomically(file, f"[\n{lines}\n]\n")
    write_atomically(RESULTS / "torch_models.md", table(found))


def table(rows: list[dict[str, Any]]) -> str:
    """A row per model: the worst of its plans, beside one process in another order."""
    good = sum(row.get("ok", False) for row in rows)
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = [
        "# Models that nobody here wrote, on PyTorch",
        "",
        f"{len(models)} models in small forms, each trained for ten steps by the plan that is "
        "searched, one that is mostly data parallel, and a random one, beside one process of eager "
        f"torch: {good} of {len(rows)} runs within 1e-5 in each loss and 1e-4 in all parameters. "
        "Below is the largest difference of a model's runs; *noise* is how far one process is from "
        "itself when it reads each batch's rows in reverse, and decides the precision.",
        "",
        "`python -m benchmarks.torch_models --shape 1x4 --shape 2x2 --shape 2x4 --save`",
        "",
        "| model | shapes | runs | good | precision | noise | losses | parameters |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for model in models:
        own = [row for row in rows if row["model"] == model]
        worst = [
            max((row[key] for row in own if key in row), default=float("nan"))
            for key in ("noise", "losses", "parameters")
        ]
        shapes = ", ".join(dict.fromkeys(row["shape"] for row in own))
        good = sum(row.get("ok", False) for row in own)
        figures = " | ".join(f"{value:.0e}" for value in worst)
        lines.append(
            f"| {model} | {shapes} | {len(own)} | {good} | {own[0]['precision']} | {figures} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=zoo.TRAINED)
    parser.add_argument("--shape", action="append")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("-v", action="store_true", help="show where an error came from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    for name in options.names:
        rows = forked(1, lambda _, name=name: {"rows": rows_of(name, options)})
        if options.save:
            save(rows["rows"])


if __name__ == "__main__":
    main()
