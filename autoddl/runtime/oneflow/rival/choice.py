"""The choice of OneFlow's `enable_auto_parallel` for a graph, read from its optimised job.

The planner runs in a process of its own with a time limit: on a large graph it may not terminate,
and even when it succeeds its process aborts, as there is no device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import oneflow.core.job.job_pb2 as job_pb
from google.protobuf import text_format

from ....graph.graph import Graph, Op
from ....sbp.mesh import Mesh
from ....sbp.placement import B, NdSbp, P, Placement, S
from ..alone import last_lines, run_alone
from ..memory.lazy_ops import why_not
from .model import merged_axes

_LATE_REASONS = "cuDNN"  # operators that fail only after OneFlow's planner has chosen

# operator -> (placements of its inputs, of its outputs)
Chosen = Mapping[str, tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]]


def ask_oneflow(graph: Graph, mesh: Mesh, optimizer: str, timeout_s: float) -> Chosen:
    """The placements that OneFlow's planner chooses, operator by operator, on `mesh`.

    Operators that OneFlow replaces by several of its own are left out. Raises ValueError if it
    cannot take the graph, fails, or has not finished after `timeout_s` seconds.
    """
    graph = graph.with_forks()
    for op in graph.ops:
        reason = "" if op.kind in ("param", "buffer", "input", "loss", "constant") else why_not(op)
        if reason and not reason.startswith(_LATE_REASONS):
            raise ValueError(f"OneFlow's planner is not asked: {op.name!r} ({op.kind}): {reason}")
    with tempfile.TemporaryDirectory(prefix="autoddl-rival-") as folder:
        job = _run(graph, mesh, optimizer, timeout_s, Path(folder))
    return read_choice(graph, mesh, job)


def read_choice(graph: Graph, mesh: Mesh, job: Any) -> Chosen:
    """The choice in a job whose operators are named after `graph`'s (see `model`)."""
    signatures = job.job_parallel_view_conf.op_name2nd_sbp_signature_conf
    chosen = {}
    for op, found in _operators(graph, job):
        conf, placed = found.user_conf, signatures[found.name].bn_in_op2nd_sbp
        ins = [f"{key}_{n}" for key in conf.input_order for n in range(len(conf.input[key].s))]
        outs = [f"{key}_{n}" for key in conf.output_order for n in range(len(conf.output[key].s))]
        if len(ins) == len(op.inputs) and len(outs) >= len(op.outputs):
            chosen[op.name] = (
                tuple(_atomic(placed[name], mesh) for name in ins),
                tuple(_atomic(placed[name], mesh) for name in outs[: len(op.outputs)]),
            )
    return chosen


def _operators(graph: Graph, job: Any) -> Iterator[tuple[Op, Any]]:
    """Operators of the graph, each with the job's operator of the same kind in its name scope."""
    taken: set[int] = set()
    for found in job.net.op:
        scope = re.match(r"(?:.*-)?o(\d+)-", found.name)  # behind the names of modules
        if scope is None or found.WhichOneof("op_type") != "user_conf":
            continue
        number = int(scope[1])
        # gradients' operators follow the forward ones, in their scopes
        if number not in taken and found.user_conf.op_type_name == graph.ops[number].kind:
            taken.add(number)
            yield graph.ops[number], found


def _atomic(nd_sbp: Any, mesh: Mesh) -> NdSbp:
    """OneFlow's placement on the merged mesh, as a placement on the atomic axes."""
    labels = [B] * mesh.num_axes
    groups = merged_axes(mesh)
    parallel = list(nd_sbp.sbp_parallel)
    if len(parallel) == 1:  # one label for all devices in a row
        groups = (tuple(range(mesh.num_axes)),)
    for group, label in zip(groups, parallel, strict=True):
        for axis in group:
            labels[axis] = _label(label)
    return NdSbp(tuple(labels))


def _label(label: Any) -> Placement:
    if label.HasField("split_parallel"):
        return S(label.split_parallel.axis)
    return P if label.HasField("partial_sum_parallel") else B


def _run(graph: Graph, mesh: Mesh, optimizer: str, timeout_s: float, folder: Path) -> Any:
    graph.save(folder / "graph.json")
    arguments = ["graph.json", str(mesh.nodes), str(mesh.gpus_per_node), optimizer]
    try:
        status = run_alone(f"{__package__}.worker", arguments, folder, timeout_s)
    except subprocess.TimeoutExpired:
        raise ValueError(f"OneFlow's planner had not ended after {timeout_s:g} seconds") from None
    for file in sorted(folder.glob("log/**/optimized_job*")):
        job = job_pb.Job()
        text_format.Parse(file.read_text(), job)
        return job
    raise ValueError(f"OneFlow's planner failed (status {status}): {last_lines(folder, 3)[-400:]}")
