"""A second algorithm of the all-reduce: everybody gathers all summands, and adds them up itself.

Half the messages of a ring, which scatters and gathers, but p/2 times its bytes: small tensors are
summed faster so. This is all that a recipe registers: its work, and how it is done on shards.
"""

import dataclasses

import numpy as np

from autoddl.sbp.collectives import COLLECTIVES
from autoddl.sbp.work import Work
from tests.clusters import cluster


def work(nodes, gpus, groups):
    """Whole summands go round a ring once: p-1 messages, each of all bytes."""
    hops = nodes * gpus - 1
    crossing = groups * hops if nodes > 1 else 0.0
    return Work(hops, crossing, float(hops), hops + 2.0, crossing)


TABLE = COLLECTIVES.with_algorithm("all_reduce", "gather", work)


def on_shards(network, step, group, shards):
    """By simulated messages (`sbp.oracle.paths`); all add up in the order of ranks."""
    held = [{i: shard} for i, shard in enumerate(shards)]
    for turn in range(len(group) - 1):
        for i in range(len(group)):
            to, which = (i + 1) % len(group), (i - turn) % len(group)
            held[to][which] = network.send(group[i], group[to], held[i][which])
    return [np.sum([summands[i] for i in range(len(group))], axis=0) for summands in held]


WAYS = {"all_reduce[gather]": on_shards}


def on_tensors(step, shape, nd, groups):
    """By the collectives of a back end (`runtime.comm`): on all ranks the same sum, bit for bit."""
    del shape, nd
    group = groups.along(step.axes)

    def run(x):
        summands = group.all_gather(x.reshape(-1)).reshape(group.size, *x.shape)
        total = summands[0]
        for rank in range(1, group.size):
            total = total + summands[rank]
        return total

    return run


RUNTIME_WAYS = {"all_reduce[gather]": on_tensors}


def machine(nodes, gpus):
    """A cluster with the second algorithm, so slow to compute that small layers are split."""
    where = cluster("gcp_a100", nodes, gpus)
    slow = {dtype: flops / 1e4 for dtype, flops in where.device.flops_per_s.items()}
    device = dataclasses.replace(where.device, flops_per_s=slow, efficiency={})
    return dataclasses.replace(where, device=device, collectives=TABLE)
