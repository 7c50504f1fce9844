"""Times a model's operators one by one, as the executor runs them, while all ranks do the same.

Every distinct operator (`cost.operators.operator_key`) runs whole on each rank, forward and then
forward and backward, for the model's batch and for the parts of it that a device would have:

    backward = median(forward and backward) - median(forward)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost.operators import computes, operator_key, whole_work
from ...graph.graph import Graph, Op
from ...graph.placed import PlannedOp
from ...sbp.layout import TensorSpec
from ...sbp.mesh import Mesh
from ...sbp.placement import B, NdSbp, Placement
from ...sbp.signature import Signature, find_rule, signatures_of
from ..backend import Backend, Tensor
from ..comm.groups import Groups
from ..execution.program import Node, compile_program
from ..execution.vjp import product, run_kernel
from ..kernel import RunState
from .measured import Limits, Progress
from .record import Record
from .stopwatch import Stopwatch

# A model has hundreds of distinct operators and batches, so each gets a fifth of the seconds that a
# sample of a collective has (`measure`), and a fixed number of samples.
SAMPLES = 5
SAMPLE_SECONDS = 0.02
MOST_CALLS = 16
COPIES = 4  # of an operator's tensors, with gradients and what its kernel keeps


@dataclass(frozen=True)
class Task:
    """One operator at one batch."""

    key: str
    work: float
    graph: Graph
    op: Op


def measure_operators(
    record: Record,
    graph: Graph,
    groups: Groups,
    watch: Stopwatch,
    memory_bytes: int,
    limits: Limits,
    save: Callable[[], None],
    show: Callable[[Progress], None],
) -> None:
    """Add to `record` those operators of `graph` that it does not have, those of most work first.

    memory_bytes: of a rank; operators that need more at a batch are left out at that batch
    limits:       what is not begun after `budget_s` is left out, too
    show:         called before each measurement
    """
    by_key: dict[str, list[Task]] = {}
    for task in tasks_of(graph, groups.mesh.size):
        if task.key not in record.operators:
            by_key.setdefault(task.key, []).append(task)
    keys = sorted(by_key, key=lambda key: -max(task.work for task in by_key[key]))
    started = time.monotonic()
    nodes: dict[int, dict[str, Node]] = {}  # by batch
    for number, key in enumerate(keys):
        spent_s = watch.agreed(time.monotonic() - started)
        if spent_s > limits.budget_s:
            left = (f"operator {key}" for key in keys[number:])
            record.skipped.update(dict.fromkeys(left, limits.time_is_over))
            break
        all_s = spent_s / number * len(keys) if number else limits.budget_s
        left_s = min(all_s, limits.budget_s) - spent_s
        found: list[tuple[float, float, float]] = []
        for task in by_key[key]:
            what = f"{task.op.kind} of batch {task.graph.batch or 'as traced'}"
            show(Progress("operators", number, len(keys), spent_s, left_s, what))
            if COPIES * _bytes(task) > memory_bytes:
                continue
            batch = task.graph.batch
            if batch not in nodes:
                nodes[batch] = _nodes(task.graph, groups)
            forward_s, both_s = _seconds(nodes[batch][task.op.name], watch)
            found.append((task.work, forward_s, max(both_s - forward_s, 0.0)))
        if found:
            record.operators[key] = found
        save()
    save()


def tasks_of(graph: Graph, devices: int) -> list[Task]:
    """The distinct operators that compute something, at each batch."""
    tasks: dict[tuple[str, float], Task] = {}
    for batch in batches_of(graph, devices):
        part = graph.with_batch(batch)
        for op in part.ops:
            spec, rule = part.spec(op), find_rule(op.kind)
            if rule is not None and op.kind != "opaque" and computes(spec, rule):
                task = Task(operator_key(part, op), whole_work(spec), part, op)
                tasks.setdefault((task.key, task.work), task)
    return list(tasks.values())


def batches_of(graph: Graph, devices: int) -> list[int]:
    """The whole batch, the part of it that one of `devices` would have, and sizes in between."""
    if graph.batch == 0:
        return [0]
    divisors = [n for n in range(1, graph.batch + 1) if graph.batch % n == 0]
    wanted = (1.0, math.sqrt(devices), float(devices))
    shares = {min(divisors, key=lambda n: abs(math.log(n / share))) for share in wanted}
    return list(_possible(graph, [graph.batch // share for share in sorted(shares)]))


def _possible(graph: Graph, batches: Sequence[int]) -> Iterator[int]:
    for batch in batches:
        try:
            graph.with_batch(batch)
        except ValueError:
            continue  # some size would not be whole
        yield batch


def _bytes(task: Task) -> int:
    spec = task.graph.spec(task.op)
    return sum(t.bytes for t in (*spec.inputs, *spec.outputs))


def _nodes(graph: Graph, groups: Groups) -> dict[str, Node]:
    """Operator name -> how to run it unsplit on this rank."""
    ops = {op.name: _replicated(graph, op, groups.mesh) for op in graph.ops}
    program = compile_program(graph, ops, {}, groups, RunState(0), {})
    return {node.op.name: node for node in program.nodes}


def _replicated(graph: Graph, op: Op, mesh: Mesh) -> PlannedOp:
    def all_axes(placements: Sequence[Placement | None]) -> tuple[NdSbp | None, ...]:
        return tuple(None if p is None else NdSbp((p,) * mesh.num_axes) for p in placements)

    signature = next(filter(_is_whole, signatures_of(graph.spec(op))))
    ins, outs, grad_outs, grad_ins = map(
        all_axes, (signature.ins, signature.outs, signature.grad_outs, signature.grad_ins)
    )
    return PlannedOp(ins, outs, grad_outs, grad_ins)  # type: ignore[arg-type]


def _is_whole(signature: Signature) -> bool:
    parts = (*signature.ins, *signature.outs, *signature.grad_outs, *signature.grad_ins)
    return all(p is None or p == B for p in parts)


def _seconds(node: Node, watch: Stopwatch) -> tuple[float, float]:
    """Median seconds of one call: (forward, forward and backward)."""
    kernel, spec, backend = node.kernel, node.context.spec, watch.backend
    assert kernel is not None
    inputs = [_filled(tensor, backend) for tensor in spec.inputs]
    gradients = [
        _filled(tensor, backend) if takes else None
        for tensor, takes in zip(spec.outputs, node.takes, strict=True)
    ]
    wanted = [edge.carries_gradient for edge in node.edges]

    def forward() -> None:
        run_kernel(backend, kernel, node.context, node.attrs, inputs, wanted)

    def both() -> None:
        record, _ = run_kernel(backend, kernel, node.context, node.attrs, inputs, wanted)
        if record is not None:
            product(record, gradients)

    once = watch.warm_up(both)
    calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / once)))
    forward_s = watch.median(forward, calls, SAMPLES)
    return forward_s, watch.median(both, calls, SAMPLES) if any(wanted) else forward_s


def _filled(tensor: TensorSpec, backend: Backend) -> Tensor:
    """A tensor of ones, but of zeros where a number may be an index."""
    value = np.full(tensor.shape, 1 if tensor.is_float else 0)
    return backend.cast(backend.from_numpy(value), tensor.dtype)
