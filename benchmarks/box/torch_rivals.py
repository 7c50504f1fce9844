"""PyTorch's own ways to train on several devices, as a step that takes a whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from .torch_models import MEGATRON, blocks_of

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DDP, FSDP, TENSOR, BOTH = "DDP", "FSDP2", "tensor parallel", "FSDP2 + tensor parallel"
RIVALS = (DDP, FSDP, TENSOR, BOTH)


def rivals_of(name: str) -> tuple[str, ...]:
    return RIVALS if name in MEGATRON else (DDP, FSDP)


class Meshes:
    """All devices as one dimension, and hosts x devices; made once, by all ranks together."""

    def __init__(self, hosts: int, each: int) -> None:
        self.flat = init_device_mesh("cpu", (hosts * each,), mesh_dim_names=("all",))
        self.grid = init_device_mesh("cpu", (hosts, each), mesh_dim_names=("data", "tensor"))


def rival_step(
    rival: str, name: str, model: nn.Module, loss: Callable[..., Any], meshes: Meshes,
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> Step:  # fmt: skip
    """A training step on a whole batch, of which each rank takes its rows; gives its own loss."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part, parts, splits_logits = rank, size, False
    made: Any = model
    if rival == DDP:
        made = DistributedDataParallel(model)
    elif rival == FSDP:
        _shard(model, meshes.flat)
    else:
        both = rival == BOTH
        _split(model, name, meshes.grid["tensor"] if both else meshes.flat)
        splits_logits = "head" in MEGATRON[name]
        part, parts = (rank // meshes.grid.size(1), meshes.grid.size(0)) if both else (0, 1)
        if both:
            _shard(model, meshes.grid["data"])
    own = optimizer(made.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, targets = x.chunk(parts)[part], y.chunk(parts)[part]
        own.zero_grad()
        with loss_parallel() if splits_logits else contextlib.nullcontext():
            value = loss(made(rows), targets)
            value.backward()
        own.step()
        found = value.detach()
        return found.full_tensor() if hasattr(found, "full_tensor") else found

    return step


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _split(model: nn.Module, name: str, mesh: DeviceMesh) -> None:
    """By the usual plan: columns, then rows; the vocabulary of the words and of the loss."""
    styles = {
        "columns": ColwiseParallel,
        "rows": RowwiseParallel,
        "vocabulary": lambda: RowwiseParallel(input_layouts=Replicate()),
        "logits": lambda: ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, {at: styles[how]() for at, how in MEGATRON[name].items()})
