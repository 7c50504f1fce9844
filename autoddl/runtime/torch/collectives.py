"""Collectives of `torch.distributed` as the runtime asks for them.

gloo's reduce-scatter moves an all-reduce's bytes, twice what it needs: there the pieces are
exchanged instead, and added up where they belong.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# as torch 2.14 calls them, where the older names warn
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Channel:
    """A group of the job's ranks."""

    ranks: tuple[int, ...]
    group: Any

    @property
    def size(self) -> int:
        return len(self.ranks)


def join_job(rank: int, size: int, device: str) -> None:
    """Meet the job's other ranks, once in a process; where `torchrun` has left its variables."""
    if size == 1 or dist.is_initialized():
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    hook = sys.excepthook  # torch's would hold back what the guard's says until it is too late
    kind, store = "nccl" if device == "cuda" else "gloo", _store_of_restart(size)
    dist.init_process_group(kind, store=store, rank=rank, world_size=size)
    sys.excepthook = hook
    # groups that Python's end finds have threads, and on busy machines abort a process that is done
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _store_of_restart(size: int) -> dist.Store | None:
    """torchrun's own store, which it keeps when it starts its processes again.

    Torch would find there where those that have ended listened. On several hosts each counts its
    own restarts, so that none is taken.
    """
    env, here = os.environ, os.environ.get("LOCAL_WORLD_SIZE")
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or here != str(size):
        return None
    store = dist.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), size, is_master=False)
    return dist.PrefixStore(f"restart {env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def channel(ranks: Sequence[int]) -> Channel:
    """For collectives of `ranks`, which alone make this call."""
    return Channel(tuple(ranks), _group(tuple(ranks), dist.group.WORLD))


@functools.cache  # each has three threads, of which gloo wakes one every 10 ms
def _group(ranks: tuple[int, ...], _job: Any) -> Any:
    return dist.new_group(list(ranks), use_local_synchronization=True)


def all_gather(channel: Channel, x: Tensor) -> Tensor:
    whole = x.new_empty(channel.size * x.shape[0])
    _ALL_GATHER(whole, x.contiguous(), group=channel.group)
    return whole


def all_reduce(channel: Channel, x: Tensor, is_own: bool) -> Tensor:
    total = x if is_own else x.clone()
    dist.all_reduce(total, group=channel.group)
    return total


def all_to_all(channel: Channel, x: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Pieces of `sizes` along dim 0, those that leave as those that come; None: of equal ones."""
    got = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(got, x.contiguous(), sizes, sizes, group=channel.group)
    return got


def reduce_scatter(channel: Channel, x: Tensor) -> Tensor:
    if dist.get_backend(channel.group) == "gloo":
        return all_to_all(channel, x.reshape(channel.size, -1)).sum(0)
    piece = x.new_empty(x.shape[0] // channel.size)
    _REDUCE_SCATTER(piece, x.contiguous(), group=channel.group)
    return piece


def hold(work: Any, sent: Tensor) -> None:
    """Hold a tensor until it has left, which gloo tells only to who waits for it."""
    while sent.is_cuda and not work.is_completed():  # a wait would hold up computation
        time.sleep(1e-3)
    work.wait()
