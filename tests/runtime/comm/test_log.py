"""What is written down of collectives: in the order in which they ran, the same on all ranks."""

import time
from functools import partial

import numpy as np

from autoddl.runtime.comm.beside import Beside
from autoddl.runtime.comm.groups import Groups
from autoddl.sbp.mesh import Mesh
from tests.exactness.numpy_backend import NumPy, World


class InOrder(NumPy):
    """NumPy whose collectives run in the order in which they were asked for, by two threads."""

    def __init__(self, world, rank):
        super().__init__(world, rank)
        self.own_thread = Beside(lambda: None)
        self.thread: Beside | None = self.own_thread

    def all_gather(self, channel, x):
        return self.own_thread.in_order(partial(super().all_gather, channel, x))

    def all_reduce(self, channel, x, is_own=False):
        return self.own_thread.in_order(partial(super().all_reduce, channel, x))


def test_what_runs_beside_is_in_its_place_on_a_rank_that_is_late():
    def work(backend):
        own = InOrder(backend.world, backend.rank)
        groups = Groups(Mesh(1, 2), own.rank, own)
        groups.log = log = []
        own.own_thread.later(lambda: time.sleep(0.2 * (own.rank == 0)))
        beside = own.own_thread.later(lambda: groups.world.all_gather(np.ones(3)))
        groups.world.all_reduce(np.ones(5))
        beside()
        return [(t.kind, t.elements, t.dtype) for t in log]

    expected = [("all_gather", 3, "float64"), ("all_reduce", 5, "float64")]
    assert World(2).run(work) == [expected, expected]
