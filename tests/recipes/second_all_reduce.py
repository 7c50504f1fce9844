"""A second algorithm of the all-reduce: everybody gathers all summands, and adds them up itself.

Half the messages of a ring, which scatters and gathers, but p/2 times its bytes: small tensors are
summed faster so. This is all that a recipe registers: its work, and how it is done on shards.
"""

import numpy as np

from autoddl.sbp.collectives import COLLECTIVES, Work


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
