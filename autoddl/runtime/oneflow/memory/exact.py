"""Asks OneFlow's compiler for a plan's memory, in a process of its own.

The compiler may order operators that are ready by the addresses of its objects, so that two
compilations of one plan can differ: 381.3 and 414.9 MB for the DLRM of `benchmarks.memory` with
tensor parallelism over four devices and SGD. Most plans give the same bytes each time.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ....plans import Plan
from ..alone import last_lines, run_alone
from .lazy_ops import why_not
from .merge import compiled_axes
from .read import DeviceMemory, Register, read_fullest
from .replay import JOB_PREFIX


@dataclass(frozen=True)
class ExactMemory:
    """OneFlow's memory plan of the device that needs most.

    names:              OneFlow's name of each parameter and buffer -> the model's
    differing:          operators whose placement OneFlow changes from the planned one
    differing_backward: operators whose gradients it makes in another placement than planned, which
                        takes other collectives, and memory, than predicted
    """

    device: DeviceMemory
    names: dict[str, str]
    differing: tuple[str, ...]
    differing_backward: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(n for name, n in self.device.variables.items() if name in self.names)

    @property
    def optimizer(self) -> int:
        """Bytes of all other variables: the optimiser's state, and the step's number."""
        return sum(self.device.variables.values()) - self.parameters

    @property
    def activations(self) -> int:
        """Bytes of the reused memory at its peak: activations, gradients and temporaries."""
        return sum(self.device.chunks)

    @property
    def buffers(self) -> int:
        """Bytes of buffers that are never reused: the batch, gradient accumulators."""
        return sum(self.device.buffers.values())

    @property
    def total(self) -> int:
        return self.device.total

    def peak(self) -> tuple[str, list[Register]]:
        """The task at which most of the largest block is live, and what is live, largest first."""
        registers = max(
            self.device.registers.values(), key=lambda rs: sum(r.bytes for r in rs), default=[]
        )
        if not registers:
            return "", []
        moment = max(
            {r.first for r in registers},
            key=lambda t: (sum(r.bytes for r in registers if r.first <= t <= r.last), -t),
        )
        alive = [r for r in registers if r.first <= moment <= r.last]
        task = next(r.task for r in registers if r.first == moment)
        return task, sorted(alive, key=lambda r: (-r.bytes, r.first, r.task))


def check_compiles(plan: Plan) -> None:
    """Raise ValueError with the reason if this plan cannot be compiled."""
    compiled_axes(plan)
    for op in plan.graph.ops:
        if op.kind in ("input", "param", "buffer", "loss", "constant"):
            continue
        reason = why_not(op)
        if reason:
            raise ValueError(
                f"the memory of {op.name!r} ({op.kind}) cannot be compiled without a GPU: "
                f"{reason}. Use the model's prediction (without --exact) for this plan"
            )
        if plan.stage.ops[op.name].inner_axes:
            raise ValueError(
                f"{op.name!r} ({op.kind}) runs collectives of its own under this plan, for which "
                "OneFlow's nn.Graph has no operator. Use the model's prediction (without --exact)"
            )
    if plan.micro_batches > 1:
        for op in plan.graph.ops:
            if op.kind == "input" and plan.graph.tensors[op.outputs[0]].batch_dims[:1] != (0,):
                raise ValueError(
                    f"input {op.attrs['index']} has no batch dim, so OneFlow cannot cut it into "
                    f"{plan.micro_batches} micro-batches; plan with one"
                )


def exact_memory(plan: Plan, timeout_s: float = 600.0) -> ExactMemory:
    """OneFlow's own memory plan of a device for `plan`.

    Raises ValueError if OneFlow cannot compile it, with OneFlow's reason.
    """
    check_compiles(plan)
    with tempfile.TemporaryDirectory(prefix="autoddl-memory-") as folder:
        path = Path(folder)
        plan.save(path / "plan.json")
        status = run_alone(f"{__package__}.worker", ["plan.json", "result.json"], path, timeout_s)
        found = sorted(path.glob(f"log/**/job_{JOB_PREFIX}*_plan"))
        if not found or not (path / "result.json").exists():
            raise ValueError(
                f"OneFlow could not compile this plan (status {status}): {_reason(path)}"
            )
        device = read_fullest(found[0])
        facts = json.loads((path / "result.json").read_text())
        if not device.variables:
            raise ValueError(f"OneFlow's plan is not whole (status {status}): {_reason(path)}")
    differing = tuple(facts["differing"]), tuple(facts["differing_backward"])
    return ExactMemory(device, facts["names"], *differing)


def _reason(folder: Path) -> str:
    return last_lines(folder, 4)[-600:] or "it said nothing"
