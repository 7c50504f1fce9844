"""One rank: carries out each resharding of a list, and notes bytes of its link and seconds.

Arguments: nodes, GPUs per node, folder (plans.pickle there: `ReshardPlan`s; repeats). Notes the
bytes of all, then the seconds of all in turn, `repeats` times, so that no plan has a better hour.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import oneflow as flow

from autoddl.plans.reshard.plan import ReshardPlan
from autoddl.plans.reshard.strategies import End
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.transfers import Resharding
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.sbp.layout import local_slices
from autoddl.sbp.mesh import Mesh
from benchmarks.box.meter import Meter


def part(plan: ReshardPlan, end: End, device: tuple[int, int]) -> np.ndarray:
    """The device's part of a tensor that counts its elements."""
    whole = np.arange(plan.spec.numel, dtype=plan.spec.dtype).reshape(plan.spec.shape)
    index = end.place.devices.index(device)
    return np.ascontiguousarray(whole[local_slices(whole.shape, end.nd, end.place.mesh, index)])


def main(nodes: int, gpus: int, folder: str) -> None:
    install_guard()
    backend = OneFlow()
    meter = Meter(Groups(Mesh(nodes, gpus), rank(), backend))
    plans, repeats = pickle.loads((Path(folder) / "plans.pickle").read_bytes())
    device = (rank() // gpus, rank() % gpus)
    calls = []
    for plan in plans:
        run = Resharding(plan, device, gpus, backend, beside=True)
        shard = None
        if device in plan.source.place.devices:
            shard = flow.tensor(part(plan, plan.source, device))
        takes = device in plan.target.place.devices

        def call(
            run: Resharding = run, shard: flow.Tensor | None = shard, takes: bool = takes
        ) -> flow.Tensor | None:
            got = run.receive() if takes else None
            if shard is not None:
                run.send(shard)
            flow._oneflow_internal.eager.Sync()
            return got

        got = call()
        if got is not None:
            assert np.array_equal(got.numpy(), part(plan, plan.target, device)), str(plan.strategy)
        meter.bytes_of(call)
        calls.append(call)
    for _ in range(repeats):
        for call in calls:
            meter.seconds_of(call, 1, lambda: 0.0)
    meter.save(folder)


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
