"""What a rank settles with the others before training: the job's size, and one plan for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow as flow

from ...cluster.spec import Cluster


def check_world_size(cluster: Cluster) -> None:
    """ValueError unless the job has one process per device of the cluster."""
    world = flow.env.get_world_size()
    if world != cluster.num_devices:
        raise ValueError(
            f"the cluster has {cluster.nodes} x {cluster.gpus_per_node} = {cluster.num_devices} "
            f"devices, but this job has {world} process{'' if world == 1 else 'es'}; start "
            f"{cluster.num_devices} processes (python -m oneflow.distributed.launch "
            f"--nproc_per_node {cluster.num_devices} ..., or autoddl train), or plan for "
            f"cluster.with_shape(nodes=..., gpus_per_node=...) of {world} in all"
        )


def optimizer_kind(optimizer: Callable[[list[Any]], Any]) -> str:
    """How much state the user's optimizer keeps, as the planner names it.

    Asks the optimizer that it makes for one small parameter; an unknown class counts as Adam.
    """
    probe = optimizer([flow.nn.Parameter(flow.zeros(1))])
    name = type(probe).__name__.lower()
    if name in ("adam", "adamw"):
        return name
    if name == "sgd":
        momentum = any(group["momentum"] for group in probe.param_groups)
        return "momentum" if momentum else "sgd"
    return "adam"


def share_text(make: Callable[[], str]) -> str:
    """`make()` of rank 0, the same text on every rank; its ValueError is raised on all ranks."""
    if flow.env.get_world_size() == 1:
        return make()
    message = ""
    if flow.env.get_rank() == 0:
        try:
            message = json.dumps({"text": make()})
        except ValueError as error:
            message = json.dumps({"error": str(error)})
    received = json.loads(_broadcast(message))
    if "error" in received:
        raise ValueError(received["error"])
    return received["text"]


def _broadcast(message: str) -> str:
    """Rank 0's `message` on every rank."""
    raw = np.frombuffer(message.encode(), dtype=np.uint8).astype(np.int32)
    size = flow.tensor(np.array([len(raw)], dtype=np.int64))
    flow.comm.broadcast(size, 0)
    count = int(size.numpy()[0])
    content = flow.tensor(raw if flow.env.get_rank() == 0 else np.zeros(count, dtype=np.int32))
    flow.comm.broadcast(content, 0)
    return bytes(content.numpy().astype(np.uint8)).decode()
