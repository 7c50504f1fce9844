"""The bytes of plans against the counters of the links: `make bench-bytes`, or with model names.

    python -m benchmarks.box.bytes [steps] [mlp] [gpt] [vgg] [--plans N]

Measures in a box of 4 x 2 with links as fast as the machine: bytes do not depend on the rate. For
each case and host it compares the link's counter, less an idle run's, with what is expected
(`expected.py`): the raw counter with the plan's bytes, and the counter without the network's
headers with the plan's bytes and the transport's control messages. Needs root.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

from autoddl.cluster import Cluster
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.sbp.mesh import Mesh
from autoddl.tools.box import Box

from . import expected
from .plan_set import plan_set
from .results import FOLDER, machine, save
from .steps import collective_cases, one_step_cases
from .work import run_plans, run_steps

SHAPE = (1024, 1024)
MODELS = ("mlp", "gpt", "vgg")
NODES, GPUS = 4, 2
# a link that should carry nothing of a step may carry a heartbeat
SILENCE_BYTES = 8192
LIMIT = 0.02
LAPTOP = "laptop"


@dataclass(frozen=True)
class Case:
    """One step, or one plan's training step, and what each host's link has sent."""

    name: str
    planned: float
    expected_payload: float
    counters: list[float]
    payloads: list[float]

    @property
    def errors(self) -> list[float]:
        """Of each host's payload, relative to what is expected (0 for a silent link)."""
        if not self.planned:
            return [0.0 if abs(c) < SILENCE_BYTES else float("inf") for c in self.counters]
        return [payload / self.expected_payload - 1 for payload in self.payloads]

    @property
    def raw_errors(self) -> list[float]:
        """Of the whole counters, headers and control messages included, relative to the plan."""
        return [counter / self.planned - 1 for counter in self.counters]


def case_of(name: str, want: expected.Expected, row: list[dict[str, Any]]) -> Case:
    """The case, from what each host noted."""
    return Case(
        name,
        want.planned,
        want.payload,
        [link["sent_bytes"] for link in row],
        [link["sent_payload"] for link in row],
    )


def measure_steps(box: Box) -> list[Case]:
    """Every collective over every subset of axes, and every step of a 2-D tensor."""
    mesh = Mesh(NODES, GPUS)
    todo = list(dict.fromkeys(collective_cases(mesh) + one_step_cases(mesh, len(SHAPE))))
    rows = run_steps(box, SHAPE, todo, repeats=3)
    return [
        case_of(f"{nd} {step}", expected.of_step(SHAPE, nd, step, mesh), row)
        for (nd, step), row in zip(todo, rows, strict=True)
    ]


def measure_model(box: Box, model: str, count: int) -> list[Case]:
    """Whole training steps by `count` plans."""
    cluster = Cluster.load(LAPTOP).with_shape(NODES, GPUS)
    plans = plan_set(trace_entry(f"benchmarks.box.models:{model}"), cluster, count)
    rows = run_plans(box, [plan for _, plan in plans], 3, measure="bytes")
    return [
        case_of(name, expected.of_plan(plan), row)
        for (name, plan), row in zip(plans, rows, strict=True)
    ]


def report(found: dict[str, list[Case]]) -> str:
    """The table of all measurements."""
    lines = [
        "# Bytes of plans against the links' counters",
        "",
        "Planned: tensors' bytes a host sends. Counter: the link's, less an idle run's, with all",
        "headers. Payload: the counter without 66 bytes of headers a packet, against the plan's",
        f"bytes and {expected.MESSAGE_BYTES} bytes of OneFlow's control messages for each message.",
        "",
        "| what | cases | planned, median | counter / planned - 1, median, worst "
        "| payload / expected - 1, median, worst | links within 2 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, cases in found.items():
        loud = [case for case in cases if case.planned]
        raw = sorted(error for case in loud for error in case.raw_errors)
        errors = sorted(error for case in loud for error in case.errors)
        planned = sorted(case.planned for case in loud)
        links = [error for case in cases for error in case.errors]
        good = sum(abs(error) <= LIMIT for error in links)
        lines.append(
            f"| {name} | {len(cases)} | {planned[len(planned) // 2] / 1e6:.2f} MB "
            f"| {_middle(raw):.2%}, {max(raw, key=abs):.2%} "
            f"| {_middle(errors):.3%}, {max(errors, key=abs):.2%} | {good} of {len(links)} |"
        )
    return "\n".join(lines)


def _middle(values: list[float]) -> float:
    return values[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", default=["steps", *MODELS])
    parser.add_argument("--plans", type=int, default=30)
    args = parser.parse_args()
    path = FOLDER / "bytes.json"
    old = json.loads(path.read_text())["cases"] if path.exists() else {}
    found = {name: [Case(**case) for case in cases] for name, cases in old.items()}
    with Box(NODES, GPUS) as box:
        for what in args.what:
            cases = measure_steps(box) if what == "steps" else measure_model(box, what, args.plans)
            found[what] = cases
            table = report(found)
            every = {name: [asdict(case) for case in cases] for name, cases in found.items()}
            save("bytes", {"machine": machine(), "cases": every}, table)
    print(report(found))


if __name__ == "__main__":
    main()
