"""What a rank settles with the others before training: the job's size, and one plan for all."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from ...cluster.spec import Cluster
from ..backend import Backend, OptimizerFn
from ..comm.groups import Group
from ..update.parameters import Parameters, one_number


def check_world_size(cluster: Cluster, world: int) -> None:
    """ValueError unless the job has one process per device of the cluster."""
    if world != cluster.num_devices:
        raise ValueError(
            f"the cluster has {cluster.nodes} x {cluster.gpus_per_node} = {cluster.num_devices} "
            f"devices, but this job has {world} process{'' if world == 1 else 'es'}; start "
            f"{cluster.num_devices} processes (autoddl train, or torchrun or python -m "
            f"oneflow.distributed.launch --nproc_per_node {cluster.num_devices}), or plan for "
            f"cluster.with_shape(nodes=..., gpus_per_node=...) of {world} in all"
        )


def optimizer_kind(make: OptimizerFn, backend: Backend) -> str:
    """How much state the user's optimizer keeps, seen from the one that it makes for one number."""
    return backend.optimizer(make, Parameters([one_number(backend)])).kind


def share_text(make: Callable[[], str], backend: Backend) -> str:
    """`make()` of rank 0, the same text on every rank; its ValueError is raised on all ranks."""
    if backend.size == 1:
        return make()
    message = ""
    if backend.rank == 0:
        try:
            message = json.dumps({"text": make()})
        except ValueError as error:
            message = json.dumps({"error": str(error)})
    received = json.loads(broadcast_text(message, 0, backend))
    if "error" in received:
        raise ValueError(received["error"])
    return received["text"]


def share_error(error: str, world: Group) -> str:
    """The first rank's that has one, on every rank; "" if none has. Ranks call it together."""
    if world.size == 1:
        return error
    backend = world.backend
    own = backend.from_numpy(np.array([bool(error)], dtype=np.float64))
    failed = np.flatnonzero(backend.to_numpy(world.all_gather(own)))
    return broadcast_text(error, int(failed[0]), backend) if len(failed) else ""


def broadcast_text(message: str, source: int, backend: Backend) -> str:
    """Rank `source`'s message on every rank."""

    def share(array: np.ndarray) -> np.ndarray:
        return backend.to_numpy(backend.broadcast(backend.from_numpy(array), source))

    raw = np.frombuffer(message.encode(), dtype=np.uint8).astype(np.int32)
    (count,) = share(np.array([len(raw)], dtype=np.int64))
    content = share(raw if backend.rank == source else np.zeros(count, dtype=np.int32))
    return bytes(content.astype(np.uint8)).decode()
