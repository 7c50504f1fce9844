"""Random cross-mesh reshardings on real processes: each rank must get its part of the target.

Arguments: number of tasks, seed.
"""

import random
import sys

import numpy as np

from autoddl.plans.reshard.plan import plan_reshard
from autoddl.plans.reshard.strategies import STRATEGIES, End
from autoddl.runtime.comm.transfers import Resharding
from autoddl.runtime.jobs.guard import install_guard, rank, world_size
from autoddl.sbp.layout import TensorSpec, local_slices
from autoddl.sbp.mesh import SubMesh
from autoddl.sbp.placement import B, NdSbp, S
from tests.framework import NAME, flow, new_backend
from tests.runtime.random_plans import cluster_of

DTYPES = ("float32", "float64", "int64", "float16", "int32", "bool")


def places(rng, world):
    """(nodes, gpus) of the job, and two disjoint sub-meshes: whole hosts, or halves of one."""
    gpus = rng.choice([g for g in range(1, world + 1) if world % g == 0])
    nodes = world // gpus
    if nodes == 1:
        part = gpus // 2
        return (nodes, gpus), SubMesh(0, 1, 0, part), SubMesh(0, 1, part, part)
    first = rng.randint(1, nodes - 1)
    second = rng.randint(1, nodes - first)
    ends = [SubMesh(0, first, 0, gpus), SubMesh(first, second, 0, gpus)]
    rng.shuffle(ends)
    return (nodes, gpus), *ends


def draw(rng, world):
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
    size, *ends = places(rng, world)
    labels = [B, *(S(d) for d in range(len(shape)))]
    source, target = (
        End(p, NdSbp(tuple(rng.choice(labels) for _ in range(p.mesh.num_axes)))) for p in ends
    )
    spec = TensorSpec(shape, rng.choice(DTYPES))
    strategy = rng.choice([None, *STRATEGIES])
    return plan_reshard(
        spec, source, target, cluster_of(*size), strategy=strategy, budget=500
    ), size


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    install_guard()
    backend = new_backend()
    rng = random.Random(seed)
    shapes = set()
    for number in range(count):
        plan, (_, gpus) = draw(rng, world_size())
        shapes.add((plan.source.place.nodes, plan.target.place.nodes))
        device = (rank() // gpus, rank() % gpus)
        whole = (np.arange(plan.spec.numel) % 97).reshape(plan.spec.shape).astype(plan.spec.dtype)
        run = Resharding(plan, device, gpus, backend, beside=True)

        def part(end, device=device, whole=whole):
            index = end.place.devices.index(device)
            return np.ascontiguousarray(whole[local_slices(whole.shape, end.nd, end.mesh, index)])

        if device in plan.source.place.devices:
            run.send(flow.tensor(part(plan.source)))
        elif device in plan.target.place.devices:
            got = run.receive()
            wanted = part(plan.target)
            assert str(got.dtype) == f"{NAME}.{plan.spec.dtype}", (got.dtype, plan.spec)
            assert np.array_equal(got.numpy(), wanted), (number, plan.strategy, plan.spec)
        backend.broadcast(flow.zeros(1), 0)
    if rank() == 0:
        print(f"delivered {count}, hosts {sorted(shapes)}", flush=True)


if __name__ == "__main__":
    main()
