"""Measures what steps send, by the counter of the loopback link, which nobody else may use.

Arguments: nodes, GPUs per node. Prints one JSON line per step: measured and counted bytes.
"""

import json
import statistics
import sys
import time

from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.comm.redistribute import prepare
from autoddl.runtime.jobs.guard import rank
from autoddl.sbp.collectives import Step, device_intra_bytes
from autoddl.sbp.layout import TensorSpec, local_shape
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from tests.framework import flow, new_backend

SPEC = TensorSpec((512, 1024, 2))
REPEATS = 3
STEPS = [
    ("all_gather[0,1] S0->B", "(S0, S0)"),
    ("all_gather[0,1] S1->B", "(S1, S1)"),
    ("all_gather[1] S1->B", "(S0, S1)"),
    ("reduce_scatter[0,1] P->S1", "(P, P)"),
    ("reduce_scatter[0] P->S0", "(P, B)"),
    ("all_reduce[0,1] P->B", "(P, P)"),
    ("all_reduce[0] P->B", "(P, S0)"),
    ("all_to_all[0,1] S0->S1", "(S0, S0)"),
    ("all_to_all[1] S1->S0", "(S0, S1)"),
    ("all_to_all[0] S2->S1", "(S2, B)"),
    ("slice[0] B->S0", "(B, B)"),
]


def sent() -> int:
    """Bytes that have gone out through the loopback link."""
    with open("/proc/net/dev") as file:
        (line,) = (line for line in file if line.strip().startswith("lo:"))
    return int(line.split()[9])


def main() -> None:
    mesh = Mesh(int(sys.argv[1]), int(sys.argv[2]))
    groups = Groups(mesh, rank(), new_backend())
    world = groups.along(range(mesh.num_axes))

    def meet() -> int:
        world.all_reduce(flow.zeros(1)).numpy()
        time.sleep(0.1)
        count = sent()
        world.all_reduce(flow.zeros(1)).numpy()  # nobody goes on before all have looked
        return count

    for text, placed in STEPS:
        step, nd = Step.parse(text), NdSbp.parse(placed)
        x = flow.ones(*local_shape(SPEC.shape, nd, mesh, rank()))
        run = prepare([step], SPEC.shape, nd, groups)
        run(x).numpy()
        idle, busy = [], []
        for _ in range(REPEATS):
            # a packet that is sent again adds to a count: the median leaves such rounds out
            start = meet()
            middle = meet()
            run(x).numpy()
            idle.append(middle - start)
            busy.append(meet() - middle)
        measured = statistics.median(busy) - statistics.median(idle)
        counted = device_intra_bytes(SPEC, nd, [step], mesh) * mesh.size
        if rank() == 0:
            print(json.dumps({"step": text, "measured": measured, "counted": counted}), flush=True)


main()
