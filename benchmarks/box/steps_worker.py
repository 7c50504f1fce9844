"""One rank: runs each step of a list and notes the bytes that it sends, or the seconds.

Arguments: nodes, GPUs per node, folder (steps.json there: shape and [placement, step] pairs, the
mesh's shares, repeats, "bytes" or "seconds").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import oneflow as flow

from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.redistribute import LocalFn, prepare
from autoddl.runtime.jobs.guard import install_guard, rank
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.sbp.collectives import Step
from autoddl.sbp.layout import local_shape
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from benchmarks.box.meter import Meter


def main(nodes: int, gpus: int, folder: str) -> None:
    install_guard()
    work = json.loads((Path(folder) / "steps.json").read_text())
    mesh = Mesh(nodes, gpus, tuple(work["shares"]))
    groups = Groups(mesh, rank(), OneFlow())
    meter = Meter(groups)
    shape = tuple(work["shape"])
    for placement, text in work["steps"]:
        nd, step = NdSbp.parse(placement), Step.parse(text)
        run = prepare([step], shape, nd, groups)
        x = flow.ones(*local_shape(shape, nd, mesh, rank()))

        def call(run: LocalFn = run, x: flow.Tensor = x) -> None:
            run(x)[:1].numpy()
            groups.backend.wait()

        call()
        if work["measure"] == "bytes":
            meter.bytes_of(call, work["repeats"])
        else:
            meter.seconds_of(call, work["repeats"], lambda: 0.0)
    meter.save(folder)


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
