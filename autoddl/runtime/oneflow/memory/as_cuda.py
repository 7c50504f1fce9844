"""Compiles jobs that were built for CPUs as jobs for CUDA devices.

After nn.Graph has built a job and before it compiles it, every operator is moved to devices of kind
"cuda": its tag, and the placement groups that name it. Operators that OneFlow keeps on the host
(ticks, the learning rate) stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import oneflow._oneflow_internal as internal
import oneflow.core.job.job_pb2 as job_pb

_MOVED = ("user_conf", "variable_conf", "input_conf", "output_conf")
_TAG = "cuda"


@contextmanager
def compiled_for_cuda(edit: Callable[[Any], None] | None = None) -> Iterator[None]:
    """A context in which new graphs compile for CUDA devices, after `edit` has changed the job."""
    make = internal.nn.graph.CNNGraph

    def make_for_cuda(name: str, serialized: bytes, *rest: Any) -> Any:
        job = job_pb.Job()
        job.ParseFromString(serialized)
        if edit is not None:
            edit(job)
        move_to_cuda(job)
        return make(name, job.SerializeToString(), *rest)

    internal.nn.graph.CNNGraph = make_for_cuda
    try:
        yield
    finally:
        internal.nn.graph.CNNGraph = make


def move_to_cuda(job: Any) -> None:
    """Put the job's computing operators on CUDA devices of the same ranks."""
    moved = {op.name for op in job.net.op if op.WhichOneof("op_type") in _MOVED}
    for op in job.net.op:
        if op.name in moved:
            op.device_tag = _TAG
    _move_groups(job, moved)
    _move_blobs(job, moved)


def _move_groups(job: Any, moved: set[str]) -> None:
    for group in list(job.placement.placement_group):
        names = list(group.op_set.op_name)
        if not moved.intersection(names):
            continue
        stay = [name for name in names if name not in moved]
        if stay:
            twin = job.placement.placement_group.add()
            twin.parallel_conf.CopyFrom(group.parallel_conf)
            twin.op_set.op_name.extend(stay)
        del group.op_set.op_name[:]
        group.op_set.op_name.extend(name for name in names if name in moved)
        group.parallel_conf.device_tag = _TAG


def _move_blobs(job: Any, moved: set[str]) -> None:
    for group in list(job.placement.blob_placement_group):
        blobs = [(blob.op_name, blob.blob_name) for blob in group.lbi]
        if not any(op in moved for op, _ in blobs):
            continue
        stay = [(op, name) for op, name in blobs if op not in moved]
        if stay:
            twin = job.placement.blob_placement_group.add()
            twin.parallel_conf.CopyFrom(group.parallel_conf)
            for op, name in stay:
                twin.lbi.add(op_name=op, blob_name=name)
        del group.lbi[:]
        for op, name in blobs:
            if op in moved:
                group.lbi.add(op_name=op, blob_name=name)
        group.parallel_conf.device_tag = _TAG
